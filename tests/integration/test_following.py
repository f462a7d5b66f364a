"""Any actor may follow the blocks of an engine; what it hears is what is found there."""

from __future__ import annotations

import asyncio

import pytest

import pageant
from pageant.actors.runtime import Actor, receives
from pageant.protocol.arrays import int32
from pageant.protocol.block_names import block_names, full_blocks, root_name
from pageant.protocol.following import FollowBlocks
from pageant.protocol.message import Message, Request


class Known(Message, frozen=True, kw_only=True):
    names: tuple[bytes, ...]


class WhatIsKnown(Request[Known], frozen=True, kw_only=True):
    """Ask an onlooker."""


class Onlooker(Actor):
    """Follows the blocks, as a router would."""

    async def on_start(self) -> None:
        self.names: dict[bytes, None] = {}
        self.spawn(self._follow())

    async def _follow(self) -> None:
        async for events in self.stream("blocks", FollowBlocks()):
            if events.reset:
                self.names.clear()
            for gone in events.removed:
                self.names.pop(gone.name, None)
            self.names.update(dict.fromkeys(block.name for block in events.stored))

    @receives
    def known(self, request: WhatIsKnown) -> Known:
        return Known(names=tuple(self.names))


@pytest.mark.parametrize("wire", ["auto", "always"])
async def test_an_actor_of_ones_own_knows_which_prefixes_are_cached(checkpoint, wire):
    prompt = list(range(4, 54))
    blocks, _ = full_blocks(int32(prompt), 16)
    names = block_names(root_name(), blocks)
    settings = {
        "actors": {"onlooker": {"class": f"{__name__}:Onlooker"}},
        **{"placement": "one", "wire": wire, "threads": 1, "num_blocks": 32},
    }
    async with pageant.Engine(checkpoint.path, **settings) as engine:
        params = pageant.SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
        await engine.complete(prompt, params)
        async with asyncio.timeout(120):
            while not set(names) <= set((await engine.ask("onlooker", WhatIsKnown())).names):
                pass
        for _ in range(12):  # others take the room
            other = [4 + (token * 7 + _) % 200 for token in range(150)]
            await engine.complete(other, params)
        async with asyncio.timeout(120):
            while names[0] in (await engine.ask("onlooker", WhatIsKnown())).names:
                pass
        again = await engine.complete(prompt, params)
        assert again.num_cached_tokens == 0, "as the onlooker said"
