"""The executor: one per device. `batch` keeps every running sequence's state, `runner` computes a step on
the device, `memory` says how much KV there is room for, and `actor` is the shell. On a GPU the runner is `cuda`'s,
which sends a step's inputs by `staging` and computes decodes as `graphs`.

Only the runners import torch, and only when the actor starts.
"""
