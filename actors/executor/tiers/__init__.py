"""Blocks of KV beyond the device's memory: in the host's, and on its disk."""
