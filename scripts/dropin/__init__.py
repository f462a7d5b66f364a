"""Checks against an installed vLLM: its names, and its own examples run on Pageant."""
