"""Counts the kernel variants that this process has loaded: a launch that needs another one takes seconds."""

from __future__ import annotations

from typing import Any

import triton

__all__ = ["count_loads", "num_loaded"]

_loaded: list[str] = []


def count_loads() -> None:
    """Count from now on. A listener that is there already is told as before."""
    listener = triton.knobs.compilation.listener

    def heard(*, src: Any, cache_hit: bool, **more: Any) -> None:
        _loaded.append(src.name)
        if listener is not None:
            listener(src=src, cache_hit=cache_hit, **more)

    triton.knobs.compilation.listener = heard


def num_loaded() -> int:
    """Return how many variants were compiled, or read from the disk's cache."""
    return len(_loaded)
