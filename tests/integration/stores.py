"""What a store holds, once nothing in it is being written or read."""

from __future__ import annotations

import asyncio

import pageant
from pageant.protocol.storing import GetStoreStatistics, StoreStatistics


async def store_at_rest(engine: pageant.Engine) -> StoreStatistics:
    """Ask the store until nothing is reserved or pinned: a request may end before its blocks are saved."""
    async with asyncio.timeout(30):
        while True:
            found = await engine.ask("store", GetStoreStatistics())
            if not (found.reserved or found.pinned):
                return found
