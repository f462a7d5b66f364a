"""The block manager's core: serves the scheduler's `Assign` from a pool. No I/O, no clock.

A block is named, and so can be matched, by the very exchange that grants the tokens that fill it, if they
are known by then: the plan that computes them precedes every plan that could use them. What is granted is
therefore always computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pageant.actors.blocks.hashing import block_name, block_names, root_name
from pageant.actors.blocks.pool import BlockPool
from pageant.protocol.allocation import Admission, Admitted, Assign, Assigned, PoolStatistics
from pageant.protocol.arrays import int32


@dataclass(slots=True)
class _Sequence:
    """A running sequence: its blocks in order, and the names of its full blocks as far as tokens are known."""

    blocks: list[int]
    names: list[bytes]
    parent: bytes  # the name that the next full block follows
    tail: bytearray = field(default_factory=bytearray)  # known tokens after the last full block, as bytes
    named: int = 0  # how many of its blocks have been given their names
    granted: int = 0  # tokens that it has been granted slots for
    granted_step: int = 0  # by the exchange of this step


class Allocation:
    """All sequences of one scheduler, and their blocks.

    Args:
        pool: where blocks come from.
        block_size: tokens per block.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool, self.block_size = pool, block_size
        self._sequences: dict[int, _Sequence] = {}
        self._uncomputed: list[tuple[int, int]] = []  # named blocks, by the step that fills them
        self._computed_step = 0
        self._queried = self._hit = 0

    def assign(self, request: Assign) -> Assigned:
        """Carries out one exchange; see `protocol/allocation`."""
        self._computed_step = request.computed_step
        self._uncomputed = [entry for entry in self._uncomputed if entry[0] > self._computed_step]
        self._learn(request)
        for serial in request.freed.tolist():
            self._free(serial)
        counts: list[int] = []
        grown: list[int] = []
        for serial, length in zip(request.grow_serials.tolist(), request.grow_lengths.tolist(), strict=True):
            sequence = self._sequences.get(serial)  # None: it was held by this manager's former life
            blocks = self._grow(sequence, length, request.step) if sequence is not None else None
            if blocks is None:
                break
            counts.append(len(blocks))
            grown.extend(blocks)
        complete = len(counts) == len(request.grow_serials)
        admitted = self._admit_in_order(request) if complete else []
        return Assigned(
            step=request.step,
            epoch=request.epoch,
            num_grown=len(counts),
            grown_counts=int32(counts),
            grown_blocks=int32(grown),
            admitted=tuple(admitted),
            blocks_free=self.pool.num_free,
            num_blocks=self.pool.num_blocks,
        )

    def release_all(self) -> None:
        """Frees every sequence: their scheduler is gone, and its last steps may never be computed."""
        self.pool.forget(block for _, block in self._uncomputed)
        self._uncomputed.clear()
        for serial in list(self._sequences):
            self._free(serial)

    def statistics(self) -> PoolStatistics:
        """How the pool stands."""
        pool = self.pool
        return PoolStatistics(
            num_blocks=pool.num_blocks,
            blocks_free=pool.num_free,
            blocks_cached=pool.num_cached,
            blocks_held=pool.num_blocks - pool.num_free,
            tokens_queried=self._queried,
            tokens_hit=self._hit,
            evictions=pool.evictions,
        )

    def check_integrity(self) -> None:
        """Asserts that every reference to a block is some sequence's."""
        self.pool.check_integrity()
        held: dict[int, int] = {}
        for sequence in self._sequences.values():
            for block in sequence.blocks:
                held[block] = held.get(block, 0) + 1
        for block in range(self.pool.num_blocks):
            found, expected = self.pool.references(block), held.get(block, 0)
            assert found == expected, f"block {block} has {found} references, {expected} sequences hold it"

    def __len__(self) -> int:
        return len(self._sequences)

    # One step of an exchange each.

    def _learn(self, request: Assign) -> None:
        """Takes in the tokens that were drawn, for the names of the blocks that they fill."""
        position = 0
        data = np.ascontiguousarray(request.token_ids, dtype="<i4").tobytes()
        counts = request.learned_counts.tolist()
        for serial, count in zip(request.learned_serials.tolist(), counts, strict=True):
            sequence = self._sequences.get(serial)
            if sequence is not None:
                self._extend(sequence, data[4 * position : 4 * (position + count)])
                self._name_full_blocks(sequence)
            position += count

    def _extend(self, sequence: _Sequence, tokens: bytes) -> None:
        sequence.tail += tokens
        size = 4 * self.block_size
        while len(sequence.tail) >= size:
            sequence.parent = block_name(sequence.parent, bytes(sequence.tail[:size]))
            sequence.names.append(sequence.parent)
            del sequence.tail[:size]

    def _free(self, serial: int) -> None:
        sequence = self._sequences.pop(serial, None)
        if sequence is not None:
            self.pool.free(sequence.blocks)

    def _grow(self, sequence: _Sequence, length: int, step: int) -> list[int] | None:
        """The blocks that a sequence gets to have slots for `length` tokens; None if there are too few."""
        wanted = self._blocks_for(length) - len(sequence.blocks)
        if wanted > self.pool.num_free:
            return None
        blocks = self.pool.take(wanted) if wanted > 0 else []
        sequence.blocks += blocks
        sequence.granted, sequence.granted_step = length, step
        self._name_full_blocks(sequence)
        return blocks

    def _name_full_blocks(self, sequence: _Sequence) -> None:
        """Names the blocks that are full of known tokens once what was granted is computed."""
        full = min(sequence.granted // self.block_size, len(sequence.names))
        for index in range(sequence.named, full):
            named = self.pool.name(sequence.blocks[index], sequence.names[index])
            if named and sequence.granted_step > self._computed_step:
                self._uncomputed.append((sequence.granted_step, sequence.blocks[index]))
            sequence.named = index + 1

    def _admit_in_order(self, request: Assign) -> list[Admitted]:
        budget = request.admission_tokens
        admitted: list[Admitted] = []
        for admission in request.admissions:
            grant = self._admit(admission, budget, request.step) if budget > 0 else None
            if grant is None:
                break
            budget -= grant.num_tokens
            admitted.append(grant)
        return admitted

    def _admit(self, admission: Admission, budget: int, step: int) -> Admitted | None:
        """Admits a sequence with what is cached of it, or leaves everything as it was."""
        assert admission.serial not in self._sequences, f"sequence {admission.serial} is admitted twice"
        total = len(admission.token_ids)
        root = root_name(admission.salt)
        names = block_names(root, admission.token_ids, self.block_size)
        blocks = (
            self.pool.match(names[: (total - 1) // self.block_size])
            if self.pool.enable_prefix_caching and not admission.skip_cache
            else []
        )
        if self._blocks_for(total) - len(blocks) > self.pool.num_free:
            self.pool.free(blocks)
            return None
        cached = len(blocks) * self.block_size
        self._queried += total
        self._hit += cached
        full = len(names) * self.block_size
        tail = np.ascontiguousarray(admission.token_ids[full:], dtype="<i4").tobytes()
        sequence = _Sequence(blocks, names, names[-1] if names else root, bytearray(tail), len(blocks))
        self._sequences[admission.serial] = sequence
        most = admission.num_tokens_max
        length = min(total - cached, budget if most is None else min(budget, most))
        self._grow(sequence, cached + length, step)
        return Admitted(
            serial=admission.serial,
            blocks=int32(sequence.blocks),
            num_cached_tokens=cached,
            num_tokens=length,
        )

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.block_size)
