"""New sequences: what is found of them, and room for the rest.

Where one parts from another within a block, the tokens before that point are copied. Copies run before their step
computes, so that only what earlier exchanges granted can be copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pageant.actors.blocks.groups import NOTHING, Groups
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.prefixes import Prefixes
from pageant.actors.blocks.sequence import Copies, Filled, Found, Sequence
from pageant.actors.blocks.tiers import Tiers


class Placed(NamedTuple):
    """A new sequence that has room."""

    found: Found
    restored: list[int]  # blocks for what comes from below, in the order of its slots
    num_cached: int  # tokens
    num_restored: int  # of these, from below


@dataclass
class Counts:
    """What has been found so far; see `PoolStatistics`."""

    tokens_queried: int = 0
    tokens_hit: int = 0
    tokens_copied: int = 0
    blocks_copied: int = 0
    blocks_restored_ahead: int = 0


class Newcomers:
    """Of one pool, and of what is below it."""

    def __init__(self, pool: BlockPool, groups: Groups, prefixes: Prefixes, tiers: Tiers | None) -> None:
        self.pool, self.groups, self.tiers = pool, groups, tiers
        self.block_size = groups.block_size
        self.counts = Counts()
        self._prefixes = prefixes
        self._copied_from: list[tuple[int, int]] = []  # blocks, by the step that reads them, not computed yet

    def begin(self, computed_step: int) -> None:
        """An exchange begins; the steps up to that one have been computed."""
        self._copied_from = [entry for entry in self._copied_from if entry[0] > computed_step]

    def forget_uncomputed(self) -> None:
        """What has not been computed may never be."""
        self._copied_from.clear()

    def place(
        self,
        sequence: Sequence,
        total: int,
        step: int,
        *,
        chunk_max: int | None,
        looks: bool,
        beside: bool,
        counts: bool = True,
    ) -> Placed | None:
        """Gives a new sequence of `total` tokens the blocks that are found of it, and those that others come into from
        below; None, and it holds nothing, if there is no room for all that it is to have.

        Args:
            chunk_max: of its tokens, no more are computed at once; None says nothing.
            looks: whether anything of it is looked for.
            beside: whether others are computed in this step, so that it waits for what takes longer to restore.
            counts: whether its tokens count as looked up, and those that are found as hits.
        """
        looks = looks and self.pool.enable_prefix_caching
        found = self._prefixes.find(sequence, total, step, self.tiers) if looks else Found()
        lacks = self._lacks(found, total, chunk_max)
        if beside and self.tiers is not None and self._warm(sequence, found, lacks, step, self.tiers):
            return None
        restored = self._take_room(found, lacks)
        if restored and not (self._are_unread(restored) and set(found.sources).isdisjoint(restored)):
            # What is restored may be there before the copies are made, so they must not meet. It is rare.
            self.pool.free([*found.held, *restored])
            found = self._prefixes.find(sequence, total, step, None)
            restored = self._take_room(found, self._lacks(found, total, chunk_max))
        if restored is None:
            return None
        num_restored = self._settle(sequence, found, restored)
        num_cached = found.num_full * self.block_size + found.num_partial
        if counts:
            self.counts.tokens_queried += total
            self.counts.tokens_hit += num_cached
        return Placed(found, restored, num_cached, num_restored)

    def fill(self, sequence: Sequence, placed: Placed, copies: Copies, step: int) -> None:
        """One that was placed is admitted: what is copied and restored for it is in this step."""
        found, counts = placed.found, self.counts
        if found.sources:
            first = found.num_full * len(self.groups)
            counts.tokens_copied += found.num_partial
            counts.blocks_copied += len(found.sources)
            self._copied_from += ((step, source) for source in found.sources)
            copies.sources += found.sources
            copies.destinations += sequence.blocks[first : first + len(self.groups)]
        if self.tiers is not None:
            self.tiers.restore(found.slots, placed.restored, placed.num_restored)

    def _warm(self, sequence: Sequence, found: Found, lacks: int, step: int, tiers: Tiers) -> bool:
        """Begins to restore what would hold up the step: some blocks, which are cached from then on. Returns whether
        it did, with nothing held."""
        in_time = tiers.time_for(found.slots)
        missing = found.restored
        if in_time == len(found.slots) or not missing or lacks > self.pool.num_free:
            return False
        count = min(len(missing), max(1, in_time))
        blocks = self.pool.take(count)
        apart = self._are_unread(blocks)
        if apart:
            tiers.warm(found.slots[:count], blocks)
            self.counts.blocks_restored_ahead += count
            sequence.blocks = [NOTHING] * len(found.blocks)
            for place, block in zip(missing, blocks, strict=False):
                sequence.blocks[place] = block
            stretches = sorted({place // len(self.groups) for place in missing[:count]})
            self._prefixes.index(
                Filled(sequence, index, [sequence.names[index]], [sequence.contents[index]], step)
                for index in stretches
            )
        self.pool.free(blocks)
        if apart:
            self.pool.free(found.held)
        return apart

    def _are_unread(self, blocks: list[int]) -> bool:
        """Whether nobody copies from any of these blocks in a step that has not been computed."""
        return not self._copied_from or {block for _, block in self._copied_from}.isdisjoint(blocks)

    def _lacks(self, found: Found, total: int, chunk_max: int | None) -> int:
        """How many blocks a new sequence is to have beside what was found."""
        first = found.num_full * self.block_size
        chunk = total - first if chunk_max is None else min(chunk_max, total - first)
        return self.groups.num_blocks(first, chunk, total) - len(found.held)

    def _take_room(self, found: Found, lacks: int) -> list[int] | None:
        """Blocks for what is restored of a new sequence; None, and nothing is held, if it lacks more than there are."""
        if lacks > self.pool.num_free:
            self.pool.free(found.held)
            return None
        return self.pool.take(len(found.slots))

    def _settle(self, sequence: Sequence, found: Found, restored: list[int]) -> int:
        """Gives a new sequence the blocks that were found for it, and those that others are restored into. Returns
        how many tokens are restored."""
        num_groups, places = len(self.groups), found.restored
        blocks = sequence.blocks = list(found.blocks)
        for place, block in zip(places, restored, strict=False):
            blocks[place] = block
        blocks += restored[len(places) :]
        stretches = {place // num_groups for place in places}
        sequence.named = min(stretches, default=found.num_full)
        position = found.num_full * self.block_size
        sequence.firsts = [self.groups.first(group, position) for group in range(num_groups)]
        partial = found.num_partial if len(restored) > len(places) else 0
        return len(stretches) * self.block_size + partial
