"""The KV store: blocks of KV in a host's memory that outlive executors, and that replicas share."""
