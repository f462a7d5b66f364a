"""`pageant pool`: how a server's KV pools stand, in words."""

from __future__ import annotations

import asyncio

import msgspec

from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.statistics import Observation
from pageant.protocol.tiers import TierStatistics
from pageant.scripts.commands.top import look
from pageant.scripts.http_client import Client


def pool(url: str, api_key: str | None, *, as_json: bool) -> None:
    """Prints each pool of a server.

    Raises:
        PeerGone: the server cannot be asked.
    """
    pools = asyncio.run(_ask(url, api_key)).pools
    if as_json:
        print(msgspec.json.encode(pools).decode())
        return
    for name, found in pools.items():
        print(name)
        for label, text in describe(found):
            print(f"  {label:<10} {text}")


async def _ask(url: str, api_key: str | None) -> Observation:
    client = Client(url, api_key)
    try:
        return await look(client)
    finally:
        client.close()
        await asyncio.sleep(0)  # connections close in the loop's next round


def describe(pool: PoolStatistics) -> list[tuple[str, str]]:
    """Rows of a label and a text."""
    cached = f"{pool.blocks_free} of {pool.num_blocks} blocks, {pool.blocks_cached} of them cached"
    hits = f"{_share(pool.tokens_hit, pool.tokens_queried)}, {pool.tokens_copied} by copies"
    rows = [
        ("free", cached),
        ("held", f"{pool.blocks_held} blocks, by {pool.sequences} sequence{'s' * (pool.sequences != 1)}"),
        ("wasted", f"{pool.slots_wasted} slots of partly filled last blocks"),
        ("hits", hits),
        ("evictions", f"{pool.evictions} blocks"),
    ]
    if pool.blocks_given_back:
        rows.append(("given back", f"{pool.blocks_given_back} blocks that no window reached any more"))
    return [*rows, *((tier.name, _describe_tier(tier, pool)) for tier in pool.tiers)]


def _describe_tier(tier: TierStatistics, pool: PoolStatistics) -> str:
    return (
        f"{tier.blocks_used} of {tier.num_blocks} blocks, {tier.blocks_saved} saved, {tier.blocks_restored} restored, "
        f"{tier.blocks_lost} lost, hits {_share(tier.tokens_hit, pool.tokens_queried)}"
    )


def _share(hit: int, queried: int) -> str:
    return f"{hit} of {queried} tokens ({hit / queried if queried else 0.0:.1%})"
