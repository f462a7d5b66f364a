"""How the KV pool stands, in words."""

from __future__ import annotations

from pageant.protocol.allocation import PoolStatistics


def describe(pool: PoolStatistics) -> list[tuple[str, str]]:
    """Rows of a label and a text."""
    cached = f"{pool.blocks_free} of {pool.num_blocks} blocks, {pool.blocks_cached} of them cached"
    share = pool.tokens_hit / pool.tokens_queried if pool.tokens_queried else 0.0
    hits = f"{pool.tokens_hit} of {pool.tokens_queried} tokens ({share:.1%}), {pool.tokens_copied} by copies"
    return [
        ("free", cached),
        ("held", f"{pool.blocks_held} blocks, by {pool.sequences} sequences"),
        ("wasted", f"{pool.slots_wasted} slots of partly filled last blocks"),
        ("hits", hits),
        ("evictions", f"{pool.evictions} blocks"),
    ]
