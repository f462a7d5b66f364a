"""Where the beginning of a sequence can be found: whole blocks by their names, and parts of one.

Names find whole blocks, on the device and below it. What follows the last of them may be part of a block that is
cached, or of one that a running sequence is filling (its tail); it is copied, or comes from below. Where there are
several groups of layers, a stretch of a sequence has a block of each, by a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress, islice

import numpy as np

from pageant.actors.blocks.branches import FANOUT_MAX, TOKEN_BYTES, Branches, common_tokens
from pageant.actors.blocks.followers import Told
from pageant.actors.blocks.groups import NOTHING, Groups
from pageant.actors.blocks.hashing import is_of_first_group, name_in_group
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.sequence import RESTORED, Filled, Found, Sequence
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
        self._told: Told | None = None  # of every block that is stored or removed
        self._listen()

    def forget_uncomputed(self, computed_step: int) -> None:
        """No step but those up to that one will ever be computed. Steps are counted anew."""
        named = list(self.pool.named())
        self.pool.forget(block for block, name in named if self._step_of(block, name) > computed_step)
        self._branches.all_computed()
        self._computed = dict.fromkeys(self._computed, (0, 0))

    def _step_of(self, block: int, name: bytes) -> int:
        return self._branches.step_of(block) if is_of_first_group(name) else self._computed[block][0]

    def open(self, sequences: Iterable[Sequence]) -> None:
        """Files the tails of running sequences, once they have a first token."""
        opened = [sequence for sequence in sequences if sequence.start is None and sequence.tail]
        starts = [one.parent(len(one.names)) + one.tail[:TOKEN_BYTES] for one in opened]
        for sequence, start in zip(opened, starts, strict=True):
            sequence.start = start
            self._open[sequence.slot] = sequence
        self._tails.add([sequence.slot for sequence in opened], starts)

    def close(self, sequences: Iterable[Sequence]) -> None:
        """Takes them from there: they are full, or their sequences are gone."""
        for sequence in sequences:
            if sequence.start is not None:
                self._tails.remove([sequence.slot], [sequence.start])
                del self._open[sequence.slot]
                sequence.start = None

    def index(self, filled: Iterable[Filled]) -> None:
        """Stretches of sequences hold what they say, and can be found by their names."""
        num_groups, size = len(self.groups), self.block_size
        blocks: list[int] = []
        names: list[bytes] = []
        parents: list[bytes] = []
        contents: list[bytes] = []
        steps: list[int] = []
        nums_before: list[int] = []
        for sequence, first, its_names, its_contents, step, granted_before in filled:
            end = first + len(its_names)
            blocks += sequence.blocks[first * num_groups : end * num_groups]
            parents.append(sequence.parent(first))
            parents += its_names[:-1]
            names += its_names
            contents += its_contents
            steps += [step] * len(its_names)
            if granted_before > first * size:
                nums_before += [max(0, granted_before - place * size) for place in range(first, end)]
            else:
                nums_before += [0] * len(its_names)
        for group in self._others:
            of_group = blocks[group::num_groups]
            fresh = self._name(of_group, [name_in_group(name, group) for name in names])
            computed = zip(steps, nums_before, strict=True)
            self._computed.update(compress(zip(of_group, computed, strict=True), fresh))
        blocks = blocks[::num_groups]
        fresh = self._name(blocks, names)
        branches = zip(blocks, parents, contents, steps, nums_before, strict=True)
        self._branches.add(compress(branches, fresh))
        if self._told is not None:
            for block, name in compress(zip(blocks, names, strict=True), fresh):
                self._told((DEVICE, name), self._stored(block, name))

    def _name(self, blocks: list[int], names: list[bytes]) -> list[bool]:
        """Blocks get their names; returns which of them are found by those now."""
        if NOTHING not in blocks:
            return self.pool.name(blocks, names)
        there = [block != NOTHING for block in blocks]
        fresh = iter(self.pool.name(list(compress(blocks, there)), list(compress(names, there))))
        return [is_there and next(fresh) for is_there in there]

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

    def _unnamed(self, blocks: list[int], names: list[bytes]) -> None:
        is_first = [is_of_first_group(name) for name in names]
        self._branches.remove(list(compress(blocks, is_first)), names)
        for block, name, of_first in zip(blocks, names, is_first, strict=True):
            if not of_first:
                del self._computed[block]
            elif self._told is not None:
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
