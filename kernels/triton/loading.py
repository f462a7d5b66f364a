"""Counts the kernel variants that this process has loaded: a launch that needs another one takes seconds."""

from __future__ import annotations

import logging
from typing import Any

import triton

__all__ = ["count_loads", "is_loading", "num_loaded", "reset_loading", "warn_of_loads"]

log = logging.getLogger("pageant.executor")

_loaded: list[str] = []
_loading: list[bool] = [False]
_warns: list[bool] = [False]


def count_loads() -> None:
    """Count from now on. A listener that is there already is told as before, and a hook is asked."""
    listener, hook = triton.knobs.compilation.listener, triton.knobs.runtime.jit_cache_hook

    def begins(**more: Any) -> bool | None:
        skips = hook(**more) if hook is not None else None
        _loading[0] = not skips
        return skips

    def heard(*, src: Any, cache_hit: bool, **more: Any) -> None:
        _loading[0] = False
        _loaded.append(src.name)
        if _warns[0]:
            log.warning("kernel %s was loaded while serving: %s, %s", src.name, src.signature, src.constants)
        if listener is not None:
            listener(src=src, cache_hit=cache_hit, **more)

    triton.knobs.runtime.jit_cache_hook = begins
    triton.knobs.compilation.listener = heard


def reset_loading() -> None:
    """Forget a compilation that failed, whose end nobody tells."""
    _loading[0] = False


def warn_of_loads() -> None:
    """Log a warning for each variant that is loaded from now on: it was to be there before the first request."""
    _warns[0] = True


def num_loaded() -> int:
    """Return how many variants were compiled, or read from the disk's cache."""
    return len(_loaded)


def is_loading() -> bool:
    """Tell whether a kernel is being compiled or read now; any thread may ask."""
    return _loading[0]
