"""Statistics of an engine's store."""

from __future__ import annotations

import asyncio

import pageant
from pageant.protocol.storing import GetStoreStatistics, StoreStatistics


async def store_of(engine: pageant.Engine) -> StoreStatistics:
    return await engine.ask("store", GetStoreStatistics())


async def store_at_rest(engine: pageant.Engine) -> StoreStatistics:
    """Ask the store until nothing is reserved or pinned: a request may end before its blocks are saved."""
    async with asyncio.timeout(30):
        while True:
            found = await store_of(engine)
            if not (found.reserved or found.pinned):
                return found
