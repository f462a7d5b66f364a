"""The KV-block manager: which block holds what, and for whom.

`pool` owns the blocks, `hashing` names them, `branches` finds those that are shared in part, `allocation`
serves the scheduler's requests from them, and `actor` is the shell around it.
"""
