"""Transports between nodes. One so far: ZeroMQ, over `ipc://` on a host and `tcp://` between hosts."""
