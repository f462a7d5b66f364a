"""The executor: one per device. `batch` keeps every running sequence's state, `runner` computes a step on
the device, `memory` says how much KV there is room for, and `actor` is the shell.

Only `runner` imports torch, and only when the actor starts.
"""
