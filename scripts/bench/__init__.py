"""Benchmarks: what the figures in the documentation come from."""
