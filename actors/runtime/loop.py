"""The event loop of nodes: uvloop, or asyncio's own where uvloop does not run."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, not yet running."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
