"""Counts over all sequences of an allocation: for statistics, and for the assertion of invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from pageant.actors.blocks.groups import Groups
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.sequence import Sequence


def slots_wasted(pool: BlockPool, sequences: Collection[Sequence], groups: Groups) -> int:
    """Return the number of slots of held blocks without a token.

    Only blocks after a sequence's last full one are counted. If another sequence shares such a block, it is
    full there.
    """
    filled: dict[int, int] = {}
    seen: Counter[int] = Counter()
    for sequence in sequences:
        first = sequence.granted // groups.block_size * len(groups)
        for place, block in enumerate(sequence.blocks[first:], first):
            if block >= 0:
                slots = max(0, sequence.granted - place // len(groups) * groups.block_size)
                filled[block] = max(filled.get(block, 0), slots)
                seen[block] += 1
    return sum(
        groups.block_size - slots for block, slots in filled.items() if pool.references(block) == seen[block]
    )


def check_references(
    pool: BlockPool, sequences: Collection[Sequence], num_groups: int, beside: Counter[int] | None = None
) -> None:
    """Assert that every reference to a block belongs to a sequence, or is one of those `beside`. O(blocks)."""
    held = Counter(beside or ())
    for sequence in sequences:
        assert len(sequence.blocks) % num_groups == 0, "a block group lacks the block of a layer group"
        held.update(sequence.held)
    for block in range(pool.num_blocks):
        found, expected = pool.references(block), held[block]
        assert found == expected, (
            f"block {block} has {found} references, {expected} sequences and transfers hold it"
        )
