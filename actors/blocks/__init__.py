"""The KV-block manager: which block holds what, and for whom.

`pool` owns the blocks, `hashing` names them, `branches` finds those that are shared in part, `prefixes` what is cached
of a sequence, and `allocation` serves the scheduler's requests from them. `tiers` and `store` keep below the device
what there is no room for on it, where that pays (`costs`); `followers` are told what comes and goes. `actor` is the
shell around it all.
"""
