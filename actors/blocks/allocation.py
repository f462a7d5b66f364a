"""The block manager's core: serves the scheduler's `Assign` from a pool. No I/O, no clock.

A block gets its name in the very exchange that grants the tokens that fill it, if they are known by then. It
can be matched from then on: the plan that computes its tokens precedes every plan that could use them. What is
granted is therefore always computed.

Where layers are in several groups, "block" in this folder often means a block group: one block of each layer
group for the same tokens (see `groups`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice

import numpy as np

from pageant.actors.blocks.admissions import Admissions
from pageant.actors.blocks.columns import Columns
from pageant.actors.blocks.counting import check_references, slots_wasted
from pageant.actors.blocks.embeddings import EmbeddingNumbers
from pageant.actors.blocks.groups import NO_BLOCK, Groups
from pageant.actors.blocks.learning import Learning
from pageant.actors.blocks.naming import open_sequence
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.prefixes import Prefixes
from pageant.actors.blocks.sequence import Copies, Sequence
from pageant.actors.blocks.stored import StoredBlocks
from pageant.actors.blocks.tiers import Tiers
from pageant.protocol.allocation import Admission, Admitted, Assign, Assigned, PoolStatistics
from pageant.protocol.arrays import Int32Vector, Int64Vector, int32


class Allocation:
    """All sequences of one scheduler, and their blocks.

    Args:
        pool: the source of blocks.
        block_size: tokens per block.
        tiers: keep cached blocks that the pool evicts; None if there are none.
        windows: the attention window of each layer group.
        num_states: how many of the groups, the last ones, hold states; see `groups`.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        tiers: Tiers | None = None,
        windows: Iterable[int | None] = (None,),
        num_states: int = 0,
    ) -> None:
        self.pool, self.block_size, self.tiers = pool, block_size, tiers
        self.groups = Groups(windows, block_size, num_states)
        self._num_groups = len(self.groups)
        # Open sequences by serial. Each has a slot of `_columns`.
        self._sequences: dict[int, Sequence] = {}
        self._columns = Columns(block_size)
        self._prefixes = Prefixes(pool, self.groups, tiers)
        self.follow, self.stored = self._prefixes.follow, self._prefixes.stored
        self._learning = Learning(self._columns, self._prefixes, self._sequences)
        self._admissions = Admissions(pool, self.groups, self._prefixes, tiers)
        self._embeddings = EmbeddingNumbers.of_pool(pool.num_blocks * block_size)
        # The last step that is known to have been computed.
        self._computed_step = 0
        # The last exchange that granted anything.
        self.granted_step = 0
        # In the present exchange, the first refused admission waits for blocks from a store, or for transfers to end.
        self._awaits_stored = False
        self._blocks_given_back = 0
        # The pool's part in a store; None if there is none.
        self.stored_blocks: StoredBlocks | None = None

    def use_store(self, stored: StoredBlocks) -> None:
        """Save full blocks in a store from now on, and restore them from there."""
        self.stored_blocks = self._prefixes.stored_blocks = stored
        stored.index = self._prefixes.index

    def assign(self, request: Assign) -> Assigned:
        """Carry out one exchange; see `protocol/allocation`."""
        self._computed_step = request.computed_step
        self._admissions.begin(self._computed_step)
        if self.tiers is not None:
            self.tiers.begin(request.step, self._computed_step)
        self._withdraw(request)
        if self.pool.enable_prefix_caching:
            self._learning.learn(request)
        for serial in request.freed.tolist():
            self._free(serial)
        counts, grown = self._grow_in_order(request)
        complete = len(counts) == len(request.grow_serials)
        copies = Copies()
        self._awaits_stored = False
        admitted = self._admit_in_order(request, copies, len(counts) > 0) if complete else []
        if request.admissions and not self._sequences and self.stored_blocks is not None:
            # No sequence will free blocks, but a transfer may.
            self._awaits_stored = self._awaits_stored or self.stored_blocks.awaits_room()
        if len(counts) or admitted:
            self.granted_step = request.step
        return Assigned(
            step=request.step,
            epoch=request.epoch,
            num_grown=len(counts),
            grown_counts=counts,
            grown_blocks=int32(grown),
            admitted=tuple(admitted),
            copy_sources=int32(copies.sources),
            copy_destinations=int32(copies.destinations),
            blocks_free=self.pool.num_free,
            num_blocks=self.pool.num_blocks,
            moves=self.tiers.end(bool(len(counts) or admitted)) if self.tiers is not None else None,
            awaits_stored=self._awaits_stored,
        )

    def release_all(self) -> None:
        """Free every sequence: their scheduler is gone, and its last steps may never be computed."""
        self._prefixes.forget_uncomputed(self._computed_step)
        self._admissions.forget_uncomputed()
        if self.tiers is not None:
            self.tiers.forget_uncommitted()
        if self.stored_blocks is not None:
            self.stored_blocks.scheduler_gone()
        self.granted_step = 0
        self._prefixes.close(self._sequences.values())
        for sequence in self._sequences.values():
            self._release(sequence.held)
        self._sequences.clear()
        self._columns.clear()

    def forget_prefixes(self, *, below: bool) -> tuple[int, int]:
        """Forget all cached prefixes; sequences keep their blocks. Return how many blocks had one, on the
        device and below.

        Args:
            below: forget what lower tiers hold, too.
        """
        self._prefixes.close(self._sequences.values())
        forgotten = self.pool.forget_all()
        if self.stored_blocks is not None:
            self.stored_blocks.forget()
        return forgotten, self.tiers.forget_all() if self.tiers is not None and below else 0

    def statistics(self) -> PoolStatistics:
        """Return the state of the pool."""
        pool, below = self.pool, (self.tiers, self.stored_blocks)
        return PoolStatistics(
            num_blocks=pool.num_blocks,
            blocks_free=pool.num_free,
            blocks_cached=pool.num_cached,
            blocks_held=pool.num_blocks - pool.num_free,
            blocks_given_back=self._blocks_given_back,
            **vars(self._admissions.counts),
            slots_wasted=slots_wasted(self.pool, self._sequences.values(), self.groups),
            sequences=len(self._sequences),
            evictions=pool.evictions,
            tiers=tuple(chain.from_iterable(one.statistics() for one in below if one is not None)),
        )

    def check_integrity(self) -> None:
        """Assert that every reference to a block belongs to a sequence, or to a transfer."""
        self.pool.check_integrity()
        assert len(self._columns) == len(self._sequences), "every sequence has a slot, and nobody else"
        if self.tiers is not None:
            self.tiers.check_integrity()
        beside = None if self.stored_blocks is None else self.stored_blocks.held()
        check_references(self.pool, self._sequences.values(), self._num_groups, beside)

    def __len__(self) -> int:
        return len(self._sequences)

    # One step of an exchange each.

    def _withdraw(self, request: Assign) -> None:
        """Take back granted tokens that were not computed. They are not known yet, so that no block is named
        for them.
        """
        if len(request.withdrawn_serials):
            slots = self._columns.find(request.withdrawn_serials)
            there = slots >= 0
            self._columns.withdraw(slots[there], request.withdrawn_lengths[there])

    def _free(self, serial: int) -> None:
        sequence = self._sequences.pop(serial, None)
        if sequence is not None:
            self._prefixes.close([sequence])
            if self.pool.enable_prefix_caching:
                self._learning.name_last_block(sequence, self._computed_step)
            self._release(sequence.held)
            self._columns.close(serial)

    def _release(self, blocks: list[int]) -> None:
        """Free one reference of each block of a sequence."""
        self.pool.free(blocks)
        if self.tiers is not None:
            named = ((block, self.pool.name_of(block)) for block in reversed(blocks))
            self.tiers.freed((block, name) for block, name in named if name is not None)

    def _free_out_of_window(self, sequence: Sequence, position: int) -> None:
        """Free the blocks that neither the token at `position` nor any later one reaches."""
        blocks, num_groups = sequence.blocks, self._num_groups
        given: list[int] = []
        for group in self.groups.windowed:
            first, before = self.groups.first(group, position), sequence.firsts[group]
            if first > before:
                places = slice(before * num_groups + group, first * num_groups + group, num_groups)
                given += blocks[places]
                blocks[places] = [NO_BLOCK] * (first - before)
                sequence.firsts[group] = first
        if given:
            self._release(given)
            self._blocks_given_back += len(given)
        self._note_next_free(sequence)

    def _note_next_free(self, sequence: Sequence) -> None:
        """Note the position from which on more blocks can be freed."""
        if self.groups.windowed:
            self._columns.free_from[sequence.slot] = min(
                self.groups.next_free(group, sequence.firsts[group]) for group in self.groups.windowed
            )

    def _grow_in_order(self, request: Assign) -> tuple[Int32Vector, list[int]]:
        """Grant running sequences the blocks that they lack, up to the first that does not fit.

        Returns the number of blocks of each granted sequence, int32 [granted], and these blocks.
        """
        lengths, drafts = request.grow_lengths, request.grow_drafts
        if not len(lengths):
            return int32(), []
        sure = lengths - drafts if len(drafts) else lengths
        slots = self._columns.find(request.grow_serials)
        # The former life of this manager held sequences that are unknown here.
        unknown = np.flatnonzero(slots < 0)
        end = int(unknown[0]) if len(unknown) else len(slots)
        # Free the blocks of all of them before any of them is refused.
        if self.groups.windowed:
            begins = self._columns.begins(slots, sure, self._computed_step)
            for index in np.flatnonzero(begins[:end] >= self._columns.free_from[slots[:end]]).tolist():
                self._free_out_of_window(
                    self._sequences[int(request.grow_serials[index])], int(begins[index])
                )
        short = (lengths[:end] > self._columns.room[slots[:end]]).nonzero()[0]
        given, grown = self._give_blocks(request.grow_serials[short], slots[short], lengths[short])
        if len(given) < len(short):
            end = int(short[len(given)])
        counts = np.zeros(end, np.int32)
        counts[short[: len(given)]] = given
        self._columns.grant(slots[:end], sure[:end], request.step)
        unnamed = self._columns.unnamed[slots[:end]].nonzero()[0]
        if len(unnamed):
            waiting = [self._sequences[serial] for serial in request.grow_serials[unnamed].tolist()]
            self._prefixes.index(chain.from_iterable(map(self._learning.nameable, waiting)))
        return counts, grown

    def _give_blocks(
        self, serials: Int64Vector, slots: Int64Vector, lengths: Int32Vector
    ) -> tuple[list[int], list[int]]:
        """Grant sequences without room for `lengths` tokens the blocks that they lack, up to the first that
        does not fit.

        Returns the number of blocks of each granted sequence, and these blocks.
        """
        if not len(serials):
            return [], []
        block_groups = self._columns.lacked(slots, lengths)
        left = self.pool.num_free // self._num_groups
        block_groups = block_groups[: np.searchsorted(np.cumsum(block_groups), left, side="right")]
        self._columns.room[slots[: len(block_groups)]] += block_groups * self.block_size
        counts = (block_groups * self._num_groups).tolist()
        blocks = self.pool.take(sum(counts))
        rest = iter(blocks)
        for serial, count in zip(serials.tolist(), counts, strict=False):
            self._sequences[serial].blocks += islice(rest, count)
        return counts, blocks

    def _begin(self, sequence: Sequence, length: int, step: int) -> None:
        """Give a new sequence the blocks that it lacks for its first `length` tokens."""
        block_groups = max(len(sequence.blocks) // self._num_groups, -(-length // self.block_size))
        sequence.blocks += self.pool.take(block_groups * self._num_groups - len(sequence.blocks))
        self._columns.room[sequence.slot] = block_groups * self.block_size
        self._columns.grant(sequence.slot, length, step)
        self._prefixes.index(self._learning.nameable(sequence))

    def _admit_in_order(self, request: Assign, copies: Copies, others: bool) -> list[Admitted]:
        """Admit as many sequences as there is room for. With `others` in the step, none of them delays it."""
        budget = request.admission_tokens
        admitted: list[Admitted] = []
        for place, admission in enumerate(request.admissions):
            fits, beside = admission.fits(budget), others or bool(admitted)
            grant = self._admit(admission, budget, request, copies, beside) if fits else None
            if grant is None:
                if self._awaits_stored:
                    self._fetch_ahead(request.admissions[place + 1 :])
                break
            budget -= grant.num_tokens
            admitted.append(grant)
        return admitted

    def _open(self, admission: Admission) -> Sequence:
        embeddings = self._embeddings if self.pool.enable_prefix_caching else None
        return open_sequence(admission, self._columns, self.block_size, embeddings)

    def _fetch_ahead(self, admissions: Iterable[Admission]) -> None:
        """Begin to fetch blocks of the store for sequences behind one that waits for its own: they wait together."""
        assert self.stored_blocks is not None, "there is a store to wait for"
        for admission in admissions:
            if not admission.skip_cache and admission.embed_names is None:
                sequence, total = self._open(admission), len(admission.token_ids)
                self.stored_blocks.wait(sequence, total, admission.serial, self.granted_step, ahead=True)
                self._columns.close(admission.serial)

    def _admit(
        self, admission: Admission, budget: int, request: Assign, copies: Copies, beside: bool
    ) -> Admitted | None:
        """Admit a sequence with what is cached of it, or leave everything as it was."""
        assert admission.serial not in self._sequences, f"sequence {admission.serial} is admitted twice"
        sequence, total = self._open(admission), len(admission.token_ids)
        store = None if admission.skip_cache else self.stored_blocks
        if store is not None and store.wait(sequence, total, admission.serial, self.granted_step):
            self._columns.close(admission.serial)
            self._awaits_stored = True
            return None
        most = admission.num_tokens_max
        budget = budget if most is None else min(budget, most)
        chunk = request.chunk_max if most is None else most
        placed = self._admissions.place(
            sequence,
            total,
            request.step,
            chunk_max=None if chunk is None else max(chunk, budget),
            uses_cache=not admission.skip_cache,
            beside=beside,
            counts=not admission.is_again,
        )
        if placed is None:
            self._columns.close(admission.serial)
            return None
        if self.stored_blocks is not None:
            self.stored_blocks.admitted(admission.serial)
        length = admission.chunk(placed.num_cached, budget)
        self._begin(sequence, placed.num_cached + length, request.step)
        self._note_next_free(sequence)
        self._sequences[admission.serial] = sequence
        self._prefixes.open([sequence])
        self._admissions.fill(sequence, placed, copies, request.step)
        return Admitted(
            serial=admission.serial,
            blocks=np.maximum(int32(sequence.blocks), 0),
            num_cached_tokens=placed.num_cached,
            num_tokens=length,
            num_restored_tokens=placed.num_restored,
        )
