"""Ways between nodes. One so far: ZeroMQ, over `ipc://` on a host and `tcp://` on loopback."""
