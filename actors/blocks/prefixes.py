"""Where the beginning of a sequence can be found: whole blocks by their names, and parts of one.

Names find whole blocks, on the device and below it. What follows the last of them may be part of a block that is
cached, or of one that a running sequence is filling (its tail); it is copied, or comes from below. Where there are
several groups of layers, a stretch of a sequence has a block of each, by a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from pageant.actors.blocks.branches import FANOUT_MAX, TOKEN_BYTES, Branches, common_tokens
from pageant.actors.blocks.followers import Told
from pageant.actors.blocks.groups import NOTHING, Groups
from pageant.actors.blocks.hashing import is_of_first_group, name_in_group
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.sequence import RESTORED, Found, Sequence
from pageant.actors.blocks.shelves import Shelves
from pageant.actors.blocks.tiers import Tiers
from pageant.protocol.following import StoredBlock

DEVICE = "device"  # the tier


class Prefixes:
    """Of one pool, the tiers below it, and the sequences that run. Those who follow are told of the first group's
    blocks."""

    def __init__(self, pool: BlockPool, groups: Groups, tiers: Tiers | None) -> None:
        self.pool, self.groups, self.block_size, self.tiers = pool, groups, groups.block_size, tiers
        self._branches = Branches(pool.num_blocks)  # of the first group's blocks
        self._others = range(1, len(groups))
        # Of the others' blocks, by which step they are computed, and how many tokens before it.
        self._computed: dict[int, tuple[int, int]] = {}
        self._tails = Shelves()  # of running sequences, by their slots; filed as `Branches` does
        self._open: dict[int, Sequence] = {}  # by slot, those whose tails are filed
        self._uncomputed: list[tuple[int, int]] = []  # named blocks, by the step that fills them
        self._computed_step = 0
        self._told: Told | None = None  # of every block that is stored or removed
        self._listen()

    def begin(self, computed_step: int) -> None:
        """An exchange begins; the steps up to that one have been computed."""
        self._computed_step = computed_step
        self._uncomputed = [entry for entry in self._uncomputed if entry[0] > computed_step]

    def forget_uncomputed(self) -> None:
        """What has not been computed may never be."""
        self.pool.forget(block for _, block in self._uncomputed)
        self._uncomputed.clear()

    def open(self, sequence: Sequence) -> None:
        """Files the tail of a running sequence, once it has a first token."""
        if sequence.start is None and (tail := sequence.tail):
            sequence.start = sequence.parent(len(sequence.names)) + tail[:TOKEN_BYTES]
            self._tails.add(sequence.start, sequence.slot)
            self._open[sequence.slot] = sequence

    def close(self, sequence: Sequence) -> None:
        """Takes it from there: it is full, or its sequence is gone."""
        if sequence.start is not None:
            self._tails.remove(sequence.start, sequence.slot)
            del self._open[sequence.slot]
            sequence.start = None

    def index(
        self,
        sequence: Sequence,
        index: int,
        name: bytes,
        tokens: bytes,
        step: int,
        granted_before: int = 0,
    ) -> None:
        """The blocks of stretch `index` of a sequence hold `tokens` when that step is computed, and before it as many
        of them as are among the sequence's first `granted_before`."""
        num_before = max(0, granted_before - index * self.block_size)
        first = index * len(self.groups)
        block = sequence.blocks[first]
        if block >= 0 and self.pool.name(block, name):
            self._branches.add(block, sequence.parent(index), tokens, step, num_before)
            if self._told is not None:
                self._told((DEVICE, name), self._stored(block, name))
            if step > self._computed_step:
                self._uncomputed.append((step, block))
        for group in self._others:
            block = sequence.blocks[first + group]
            if block >= 0 and self.pool.name(block, name_in_group(name, group)):
                self._computed[block] = step, num_before
                if step > self._computed_step:
                    self._uncomputed.append((step, block))

    def find(self, sequence: Sequence, total: int, step: int, tiers: Tiers | None) -> Found:
        """What is cached of a new sequence of `total` tokens, the last of which is to be computed."""
        names = sequence.names[: (total - 1) // self.block_size]
        if len(self.groups) > 1 or self.groups.windowed:
            found = self._find_in_groups(names, tiers)
        else:
            blocks = self.pool.match(names)
            slots = [] if tiers is None else tiers.find(names[len(blocks) :])
            blocks += [RESTORED] * len(slots)
            found = Found(num_full=len(blocks), blocks=blocks, slots=slots)
        index = found.num_full
        tokens = sequence.contents[index] if index < len(sequence.contents) else sequence.tail
        wanted = tokens[: TOKEN_BYTES * (total - 1 - index * self.block_size)]
        if wanted:
            parent = sequence.parent(index)
            found.sources, found.num_partial = self._find_partial(parent, wanted, step)
            if tiers is not None:
                slots, count = tiers.find_partial(parent, wanted, found.num_partial, len(self.groups))
                if slots:
                    found.sources, found.num_partial = [], count
                    found.slots += slots
        return found

    def _find_in_groups(self, names: list[bytes], tiers: Tiers | None) -> Found:
        """As many stretches as there can be of which all blocks are cached that the first uncomputed token reaches."""
        pool, groups = self.pool, self.groups

        def cached(group: int, index: int) -> bool:
            name = name_in_group(names[index], group)
            return name in pool or (tiers is not None and name in tiers)

        found = Found(num_full=groups.longest(len(names), cached))
        firsts = [groups.first(group, found.num_full * self.block_size) for group in range(len(groups))]
        for index, name in enumerate(names[: found.num_full]):
            for group, first in enumerate(firsts):
                if index < first:
                    found.blocks.append(NOTHING)
                    continue
                of_group = name_in_group(name, group)
                block = next(iter(pool.match([of_group])), RESTORED)
                found.blocks.append(block)
                if block == RESTORED:
                    assert tiers is not None, "it is cached somewhere"
                    found.slots += tiers.find([of_group])
        return found

    def _find_partial(self, parent: bytes, wanted: bytes, step: int) -> tuple[list[int], int]:
        """The blocks of a stretch that follows `parent`, and of the tokens `wanted` how many it begins with, computed
        before this step. Anybody may write to them, or get them, in this very step: the copy comes before."""
        source, most = self._branches.find(parent, wanted, step)
        sources = [] if source is None else [source]
        if source is not None and self._others:
            sources, most = self._with_other_groups(source, most, step)
        for slot in islice(self._tails.under(parent + wanted[:TOKEN_BYTES]), FANOUT_MAX):
            sequence = self._open[slot]
            computed = sequence.granted if sequence.granted_step < step else sequence.granted_before
            count = common_tokens(self._written(sequence, computed), wanted)
            if count > most:
                first = len(sequence.names) * len(self.groups)
                sources, most = sequence.blocks[first : first + len(self.groups)], count
        return sources, most

    def _with_other_groups(self, source: int, count: int, step: int) -> tuple[list[int], int]:
        """The blocks of all groups that hold what a block of the first does, and how many of `count` tokens of it are
        computed in all of them before this step."""
        name = self.pool.name_of(source)
        assert name is not None, "it was found by that"
        sources = [source]
        for group in self._others:
            block = self.pool.find(name_in_group(name, group))
            if block is None:
                return [], 0
            computed_by, num_before = self._computed[block]
            if computed_by >= step:
                count = min(count, num_before)
            sources.append(block)
        return (sources, count) if count > 0 else ([], 0)

    def _written(self, sequence: Sequence, granted: int) -> bytes:
        """What the block of a sequence's tail holds once `granted` tokens of it have been computed."""
        return sequence.tail[: TOKEN_BYTES * max(0, granted - len(sequence.names) * self.block_size)]

    def follow(self, told: Told | None) -> None:
        """From now on that is told of every block that is stored or removed, in any tier; None ends it."""
        self._told = told
        self._listen()
        if self.tiers is not None:
            self.tiers.follow(told)

    def _listen(self) -> None:
        plain = self._told is None and not self._others
        self.pool.on_unnamed = self._branches.remove if plain else self._unnamed

    def _unnamed(self, block: int, name: bytes) -> None:
        if not is_of_first_group(name):
            del self._computed[block]
            return
        self._branches.remove(block, name)
        if self._told is not None:
            self._told((DEVICE, name), None)

    def stored(self) -> Iterator[StoredBlock]:
        """Every block that can be found, in every tier."""
        for block, name in self.pool.named():
            if is_of_first_group(name):
                yield self._stored(block, name)
        if self.tiers is not None:
            yield from self.tiers.stored()

    def _stored(self, block: int, name: bytes) -> StoredBlock:
        parent, tokens = self._branches.holds(block)
        token_ids = np.frombuffer(tokens, "<i4")
        return StoredBlock(tier=DEVICE, name=name, parent=parent, token_ids=token_ids)
