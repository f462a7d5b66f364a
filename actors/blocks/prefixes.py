"""The prefix cache: finds the beginning of a sequence, as whole blocks by their names and as a part of one
block.

Names find whole blocks, on the device and below it. The tokens after them may be found in part of a cached
block, or of a block that a running sequence is filling (its tail). That part is copied, or restored from below.
With several layer groups, a block group has a block of each, by a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress, islice

import numpy as np

from pageant.actors.blocks.followers import Listener
from pageant.actors.blocks.groups import NO_BLOCK, Groups
from pageant.actors.blocks.partial_blocks import FANOUT_MAX, TOKEN_BYTES, PartialBlockIndex, common_tokens
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.sequence import RESTORED, Filled, Found, Sequence
from pageant.actors.blocks.stored import StoredBlocks
from pageant.actors.blocks.tail_index import TailIndex
from pageant.actors.blocks.tiers import Tiers
from pageant.protocol.block_names import is_of_first_group, name_in_group
from pageant.protocol.following import StoredBlock

# The name of the device's tier.
DEVICE = "device"


class Prefixes:
    """The prefix cache of one pool, the tiers below it, and the running sequences. Followers get the first
    group's blocks.
    """

    def __init__(self, pool: BlockPool, groups: Groups, tiers: Tiers | None) -> None:
        self.pool, self.groups, self.block_size, self.tiers = pool, groups, groups.block_size, tiers
        # Partial-block index of the first group's blocks.
        self._partial_blocks = PartialBlockIndex(pool.num_blocks)
        self._others = range(1, len(groups))
        # For blocks of the other groups: the step that computes each, and how many of its tokens are computed
        # before.
        self._computed: dict[int, tuple[int, int]] = {}
        # Tails of running sequences by slot, indexed as in `PartialBlockIndex`.
        self._tails = TailIndex()
        # Sequences whose tails are indexed, by slot.
        self._open: dict[int, Sequence] = {}
        # Called with every block that is stored or removed; None if there are no followers.
        self._listener: Listener | None = None
        # Full blocks that are named are saved there; None if there is no store.
        self.stored_blocks: StoredBlocks | None = None
        self._listen()

    def forget_uncomputed(self, computed_step: int) -> None:
        """Forget blocks of steps after `computed_step`, which will never be computed. Steps are numbered anew."""
        named = list(self.pool.named())
        self.pool.forget(block for block, name in named if self._step_of(block, name) > computed_step)
        self._partial_blocks.all_computed()
        self._computed = dict.fromkeys(self._computed, (0, 0))

    def _step_of(self, block: int, name: bytes) -> int:
        return self._partial_blocks.step_of(block) if is_of_first_group(name) else self._computed[block][0]

    def open(self, sequences: Iterable[Sequence]) -> None:
        """Index the tails of running sequences that have a first token."""
        opened = [sequence for sequence in sequences if sequence.start is None and sequence.tail]
        starts = [one.parent(len(one.names)) + one.tail[:TOKEN_BYTES] for one in opened]
        for sequence, start in zip(opened, starts, strict=True):
            sequence.start = start
            self._open[sequence.slot] = sequence
        self._tails.add([sequence.slot for sequence in opened], starts)

    def close(self, sequences: Iterable[Sequence]) -> None:
        """Remove tails from the index: they are full, or their sequences are gone."""
        for sequence in sequences:
            if sequence.start is not None:
                self._tails.remove([sequence.slot], [sequence.start])
                del self._open[sequence.slot]
                sequence.start = None

    def index(self, filled: Iterable[Filled]) -> None:
        """Name blocks of sequences, which can be found by their names from then on."""
        if self.stored_blocks is not None:
            filled = list(filled)
            self.stored_blocks.note(filled)
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
        self._partial_blocks.add(compress(branches, fresh))
        if self._listener is not None:
            for block, name in compress(zip(blocks, names, strict=True), fresh):
                self._listener((DEVICE, name), self._stored(block, name))

    def _name(self, blocks: list[int], names: list[bytes]) -> list[bool]:
        """Name blocks. Return which of them are found by their names now."""
        if NO_BLOCK not in blocks:
            return self.pool.name(blocks, names)
        there = [block != NO_BLOCK for block in blocks]
        fresh = iter(self.pool.name(list(compress(blocks, there)), list(compress(names, there))))
        return [is_there and next(fresh) for is_there in there]

    def find(self, sequence: Sequence, total: int, step: int, tiers: Tiers | None) -> Found:
        """Return what is cached of a new sequence of `total` tokens, the last of which must be computed."""
        names = sequence.names[: (total - 1) // self.block_size]
        if len(self.groups) > 1 or self.groups.windowed:
            found = self._find_in_groups(names, step, tiers)
        else:
            blocks = self.pool.match(names)
            slots = [] if tiers is None else tiers.find(names[len(blocks) :])
            blocks += [RESTORED] * len(slots)
            found = Found(num_full=len(blocks), blocks=blocks, slots=slots)
        if self.groups.has_states:
            return found  # of a part of a block there are no states
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

    def _find_in_groups(self, names: list[bytes], step: int, tiers: Tiers | None) -> Found:
        """Find the most block groups of which all blocks are cached that the first uncomputed token reaches.

        States count only if they were computed before `step`: in a step, nobody waits for those of others.
        """
        pool, groups = self.pool, self.groups

        def cached(group: int, index: int) -> bool:
            name = name_in_group(names[index], group)
            return name in pool or (tiers is not None and name in tiers)

        def there(group: int, index: int) -> bool:
            block = pool.find(name_in_group(names[index], group)) if group else None
            return cached(group, index) and (block is None or self._computed[block][0] < step)

        longest = groups.longest(len(names), cached)
        found = Found(num_full=groups.longest(len(names), there) if groups.has_states else longest)
        found.grows = found.num_full < longest
        firsts = [groups.first(group, found.num_full * self.block_size) for group in range(len(groups))]
        for index, name in enumerate(names[: found.num_full]):
            for group, first in enumerate(firsts):
                if index < first:
                    found.blocks.append(NO_BLOCK)
                    continue
                of_group = name_in_group(name, group)
                block = next(iter(pool.match([of_group])), RESTORED)
                found.blocks.append(block)
                if block == RESTORED:
                    assert tiers is not None, "it is cached somewhere"
                    found.slots += tiers.find([of_group])
        return found

    def _find_partial(self, parent: bytes, wanted: bytes, step: int) -> tuple[list[int], int]:
        """Return the blocks after `parent` that share most of the first `wanted` tokens, and the number of
        shared tokens.

        Counts tokens that are computed before `step`. Others may write to these blocks, or get them, in this
        very step: the copy comes before.
        """
        source, most = self._partial_blocks.find(parent, wanted, step)
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
        """Return the blocks of all groups beside a block of the first, and how many of `count` tokens all of
        them have.

        Counts tokens that are computed before `step`.
        """
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
        """Return the tokens in the block of a sequence's tail once `granted` tokens of the sequence are
        computed.
        """
        return sequence.tail[: TOKEN_BYTES * max(0, granted - len(sequence.names) * self.block_size)]

    def follow(self, listener: Listener | None) -> None:
        """Call `listener` with every block that is stored or removed, in any tier; None ends it."""
        self._listener = listener
        self._listen()
        if self.tiers is not None:
            self.tiers.follow(listener)

    def _listen(self) -> None:
        plain = self._listener is None and not self._others
        self.pool.on_unnamed = self._partial_blocks.remove if plain else self._unnamed

    def _unnamed(self, blocks: list[int], names: list[bytes]) -> None:
        is_first = [is_of_first_group(name) for name in names]
        self._partial_blocks.remove(list(compress(blocks, is_first)), names)
        for block, name, of_first in zip(blocks, names, is_first, strict=True):
            if not of_first:
                del self._computed[block]
            elif self._listener is not None:
                self._listener((DEVICE, name), None)

    def stored(self) -> Iterator[StoredBlock]:
        """Yield every block that can be found, in every tier."""
        for block, name in self.pool.named():
            if is_of_first_group(name):
                yield self._stored(block, name)
        if self.tiers is not None:
            yield from self.tiers.stored()

    def _stored(self, block: int, name: bytes) -> StoredBlock:
        parent, tokens = self._partial_blocks.holds(block)
        token_ids = np.frombuffer(tokens, "<i4")
        return StoredBlock(tier=DEVICE, name=name, parent=parent, token_ids=token_ids)
