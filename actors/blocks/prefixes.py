"""Where the beginning of a sequence can be found: whole blocks by their names, and parts of one.

Names find whole blocks, on the device and below it. What follows the last of them may be part of a block that is
cached, or of one that a running sequence is filling (its tail); it is copied, or comes from below.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from pageant.actors.blocks.branches import FANOUT_MAX, TOKEN_BYTES, Branches, common_tokens
from pageant.actors.blocks.followers import Told
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.sequence import Found, Sequence
from pageant.actors.blocks.tiers import Tiers
from pageant.actors.blocks.window import Window
from pageant.protocol.following import StoredBlock

DEVICE = "device"  # the tier


class Prefixes:
    """Of one pool, the tiers below it, and the sequences that run."""

    def __init__(self, pool: BlockPool, block_size: int, tiers: Tiers | None, window: Window | None) -> None:
        self.pool, self.block_size, self.tiers, self.window = pool, block_size, tiers, window
        self._branches = Branches()
        pool.on_unnamed = self._branches.remove
        self._tails: dict[bytes, dict[Sequence, None]] = {}  # of running sequences, filed as `Branches` does
        self._uncomputed: list[tuple[int, int]] = []  # named blocks, by the step that fills them
        self._computed_step = 0
        self._told: Told | None = None  # of every block that is stored or removed

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
        if sequence.start is None and sequence.tail:
            parent = sequence.parent(len(sequence.names))
            sequence.start = parent + sequence.tail[:TOKEN_BYTES]
            self._tails.setdefault(sequence.start, {})[sequence] = None

    def close(self, sequence: Sequence) -> None:
        """Takes it from there: it is full, or its sequence is gone."""
        if sequence.start is not None:
            tails = self._tails[sequence.start]
            del tails[sequence]
            if not tails:
                del self._tails[sequence.start]
            sequence.start = None

    def index(
        self,
        block: int,
        sequence: Sequence,
        index: int,
        name: bytes,
        tokens: bytes,
        step: int,
        num_before: int = 0,
    ) -> None:
        """A block holds `tokens` of block `index` of a sequence when that step is computed."""
        if self.pool.name(block, name):
            self._branches.add(block, sequence.parent(index), tokens, step, num_before)
            if self._told is not None:
                self._told((DEVICE, name), self._stored(block, name))
            if step > self._computed_step:
                self._uncomputed.append((step, block))

    def find(self, sequence: Sequence, total: int, step: int, tiers: Tiers | None) -> Found:
        """What is cached of a new sequence of `total` tokens, the last of which is to be computed."""
        names = sequence.names[: (total - 1) // self.block_size]
        if self.window is not None:
            found = self._find_in_window(names, tiers, self.window)
        else:
            found = Found(blocks=[*self.pool.match(names)])
            if tiers is not None:
                found.slots = tiers.find(names[len(found.blocks) :])
                found.blocks += [None] * len(found.slots)
        index = found.num_full
        tokens = sequence.contents[index] if index < len(sequence.contents) else sequence.tail
        wanted = tokens[: TOKEN_BYTES * (total - 1 - index * self.block_size)]
        if wanted:
            parent = sequence.parent(index)
            found.source, found.num_partial = self._find_partial(parent, wanted, step)
            slot = tiers.find_partial(parent, wanted, found.num_partial) if tiers is not None else None
            if slot is not None:
                found.source = None
                found.slots.append(slot[0])
                found.num_partial = slot[1]
        return found

    def _find_in_window(self, names: list[bytes], tiers: Tiers | None, window: Window) -> Found:
        """The blocks that the first uncomputed token reaches, as late as they are all cached."""
        pool = self.pool
        first, end = window.longest(names, lambda name: name in pool or (tiers is not None and name in tiers))
        found = Found(first=first)
        for name in names[first:end]:
            block = next(iter(pool.match([name])), None)
            found.blocks.append(block)
            if block is None and tiers is not None:
                found.slots += tiers.find([name])
        return found

    def _find_partial(self, parent: bytes, wanted: bytes, step: int) -> tuple[int | None, int]:
        """A block that follows `parent`, and of the tokens `wanted` how many it begins with, computed before
        this step. Anybody may write to it, or get it, in this very step: the copy comes before."""
        source, most = self._branches.find(parent, wanted, step)
        tails = self._tails.get(parent + wanted[:TOKEN_BYTES], {})
        for sequence in islice(reversed(tails), FANOUT_MAX):
            computed = sequence.granted if sequence.granted_step < step else sequence.granted_before
            count = common_tokens(self._written(sequence, computed), wanted)
            if count > most:
                source, most = sequence.blocks[len(sequence.names)], count
        return source, most

    def _written(self, sequence: Sequence, granted: int) -> bytes:
        """What the block of a sequence's tail holds once `granted` tokens of it have been computed."""
        return sequence.tail[: TOKEN_BYTES * max(0, granted - len(sequence.names) * self.block_size)]

    def follow(self, told: Told | None) -> None:
        """From now on that is told of every block that is stored or removed, in any tier; None ends it."""
        self._told = told
        self.pool.on_unnamed = self._branches.remove if told is None else self._unnamed
        if self.tiers is not None:
            self.tiers.follow(told)

    def _unnamed(self, block: int, name: bytes) -> None:
        self._branches.remove(block, name)
        if self._told is not None:
            self._told((DEVICE, name), None)

    def stored(self) -> Iterator[StoredBlock]:
        """Every block that can be found, in every tier."""
        for block, name in self.pool.named():
            yield self._stored(block, name)
        if self.tiers is not None:
            yield from self.tiers.stored()

    def _stored(self, block: int, name: bytes) -> StoredBlock:
        parent, tokens = self._branches.holds(block)
        token_ids = np.frombuffer(tokens, "<i4")
        return StoredBlock(tier=DEVICE, name=name, parent=parent, token_ids=token_ids)
