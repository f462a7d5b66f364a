"""Collective operations among the ranks of a group: sums, broadcasts, gathers, and messages between two ranks.

`base` has the interface. `local` joins threads of one process, `shared_memory` processes of one host, and
`process_group` everything else, by torch.distributed.

Importing this package loads no torch: only the submodules do.
"""
