"""Benchmarks of the CPU kernels, each a command of its own.

`python -m pageant.scripts.bench.kernels` times every kernel beside the reference and the memory. `.tiles` compares two
forms of weights, and `.screening` two ways to draw; both time their `pairs` in turns.
"""
