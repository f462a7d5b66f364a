"""Other engines on the same workloads."""
