"""The KV-block manager: owns the blocks of KV memory, grants them to sequences, and finds cached prefixes.

`pool` owns the blocks. `hashing` names them by the hash of their prefix. `partial_blocks` finds blocks that are
shared in part, and `prefixes` what is cached of a sequence. `allocation` serves the scheduler's requests.
`tiers` and `store` keep blocks below the device for which there is no room on it, where that pays (`costs`).
`followers` get events about stored and removed blocks. `actor` is the shell.
"""
