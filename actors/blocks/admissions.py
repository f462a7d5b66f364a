"""Admissions: what is cached of a new sequence, and room for the rest.

Where a sequence parts from another within a block, the tokens before that point are copied. Copies run before
their step computes, so that only tokens that earlier exchanges granted can be copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pageant.actors.blocks.groups import NO_BLOCK, Groups
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.prefixes import Prefixes
from pageant.actors.blocks.sequence import Copies, Filled, Found, Sequence
from pageant.actors.blocks.tiers import Tiers


class PlacedSequence(NamedTuple):
    """A new sequence that has room."""

    found: Found
    restored: list[int]
    """Blocks that receive restored KV, in the order of the slots."""
    num_cached: int
    """Tokens that need no computation."""
    num_restored: int
    """Cached tokens that come from a lower tier."""


@dataclass
class Counts:
    """Counters of prefix hits so far; see `PoolStatistics`."""

    tokens_queried: int = 0
    tokens_hit: int = 0
    tokens_copied: int = 0
    blocks_copied: int = 0
    blocks_restored_ahead: int = 0


class Admissions:
    """Admits sequences to one pool, with what the tiers below it hold."""

    def __init__(self, pool: BlockPool, groups: Groups, prefixes: Prefixes, tiers: Tiers | None) -> None:
        self.pool, self.groups, self.tiers = pool, groups, tiers
        self.block_size = groups.block_size
        self.counts = Counts()
        self._prefixes = prefixes
        # Blocks that steps copy from, with the step; steps that were computed are dropped.
        self._copied_from: list[tuple[int, int]] = []

    def begin(self, computed_step: int) -> None:
        """Begin an exchange; the steps up to `computed_step` have been computed."""
        self._copied_from = [entry for entry in self._copied_from if entry[0] > computed_step]

    def forget_uncomputed(self) -> None:
        """Forget copies of steps that may never be computed."""
        self._copied_from.clear()

    def place(
        self,
        sequence: Sequence,
        total: int,
        step: int,
        *,
        chunk_max: int | None,
        uses_cache: bool,
        beside: bool,
        counts: bool = True,
    ) -> PlacedSequence | None:
        """Give a new sequence of `total` tokens the cached blocks, and blocks for what is restored.

        Returns None, and the sequence holds nothing, if there is no room for all that it needs.

        Args:
            chunk_max: the most tokens that it computes at once; None sets no bound.
            uses_cache: look its prefix up.
            beside: others are computed in this step: the sequence waits for what takes long to restore.
            counts: count its tokens as queried, and the cached ones as hits.
        """
        uses_cache = uses_cache and self.pool.enable_prefix_caching
        found = self._prefixes.find(sequence, total, step, self.tiers) if uses_cache else Found()
        if found.grows:
            self.pool.free(found.held)
            return None
        lacks = self._lacks(found, total, chunk_max)
        if (
            beside
            and self.tiers is not None
            and self._restore_ahead(sequence, found, lacks, step, self.tiers)
        ):
            return None
        restored = self._take_room(found, lacks)
        if restored and not (self._are_unread(restored) and set(found.sources).isdisjoint(restored)):
            # A block may be restored before copies are made, so that no copy may read it. This is rare.
            self.pool.free([*found.held, *restored])
            found = self._prefixes.find(sequence, total, step, None)
            restored = self._take_room(found, self._lacks(found, total, chunk_max))
        if restored is None:
            return None
        num_restored = self._give_found_blocks(sequence, found, restored)
        num_cached = found.num_full * self.block_size + found.num_partial
        if counts:
            self.counts.tokens_queried += total
            self.counts.tokens_hit += num_cached
        return PlacedSequence(found, restored, num_cached, num_restored)

    def fill(self, sequence: Sequence, placed: PlacedSequence, copies: Copies, step: int) -> None:
        """Admit a sequence that was placed: its copies and restores are made in this step."""
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

    def _restore_ahead(self, sequence: Sequence, found: Found, lacks: int, step: int, tiers: Tiers) -> bool:
        """Begin to restore blocks that would delay the step; they are cached from then on. Return whether it
        did.

        If it did, the sequence holds nothing.
        """
        in_time = tiers.time_for(found.slots)
        missing = found.restored
        if in_time == len(found.slots) or not missing or lacks > self.pool.num_free:
            return False
        count = min(len(missing), max(1, in_time))
        blocks = self.pool.take(count)
        apart = self._are_unread(blocks)
        if apart:
            tiers.restore_ahead(found.slots[:count], blocks)
            self.counts.blocks_restored_ahead += count
            sequence.blocks = [NO_BLOCK] * len(found.blocks)
            for place, block in zip(missing, blocks, strict=False):
                sequence.blocks[place] = block
            block_groups = sorted({place // len(self.groups) for place in missing[:count]})
            self._prefixes.index(
                Filled(sequence, index, [sequence.names[index]], [sequence.contents[index]], step)
                for index in block_groups
            )
        self.pool.free(blocks)
        if apart:
            self.pool.free(found.held)
        return apart

    def _are_unread(self, blocks: list[int]) -> bool:
        """Tell whether no step that is not computed yet copies from any of these blocks."""
        return not self._copied_from or {block for _, block in self._copied_from}.isdisjoint(blocks)

    def _lacks(self, found: Found, total: int, chunk_max: int | None) -> int:
        """Return how many blocks a new sequence needs besides the cached ones."""
        first = found.num_full * self.block_size
        chunk = total - first if chunk_max is None else min(chunk_max, total - first)
        return self.groups.num_blocks(first, chunk, total) - len(found.held)

    def _take_room(self, found: Found, lacks: int) -> list[int] | None:
        """Take blocks for what is restored of a new sequence. Return None, with nothing held, if it lacks more
        than there are.
        """
        if lacks > self.pool.num_free:
            self.pool.free(found.held)
            return None
        return self.pool.take(len(found.slots))

    def _give_found_blocks(self, sequence: Sequence, found: Found, restored: list[int]) -> int:
        """Give a new sequence its cached blocks, and those that are restored. Return the number of restored
        tokens.
        """
        num_groups, places = len(self.groups), found.restored
        blocks = sequence.blocks = list(found.blocks)
        for place, block in zip(places, restored, strict=False):
            blocks[place] = block
        blocks += restored[len(places) :]
        block_groups = {place // num_groups for place in places}
        sequence.named = min(block_groups, default=found.num_full)
        position = found.num_full * self.block_size
        sequence.firsts = [self.groups.first(group, position) for group in range(num_groups)]
        partial = found.num_partial if len(restored) > len(places) else 0
        return len(block_groups) * self.block_size + partial
