"""The persistent batch: a row per running sequence, in preallocated arrays, updated by vectorised writes.

A plan brings what is new; `apply` takes it in and returns the step's inputs, packed. There is no Python
loop over tokens, and one over sequences only for those that are new. A plan may come while the step before
it is computed: what that one draws has its place here, and its ids are taken from the device's memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.adapter_rows import AdapterRows
from pageant.actors.executor.batch.embedded import EmbeddedPrompts
from pageant.actors.executor.batch.encoded import EncodedPrompts
from pageant.actors.executor.batch.endings import EndTokens
from pageant.actors.executor.batch.inputs import (
    UNKNOWN,
    Int32,
    Int64,
    Proposing,
    StepInputs,
    Verifying,
    pack,
)
from pageant.actors.executor.batch.pooled import PooledSequences
from pageant.actors.executor.batch.processors import Processors
from pageant.actors.executor.batch.recurrent import RecurrentRows
from pageant.actors.executor.batch.rotary import RotaryRows
from pageant.actors.executor.batch.sampling_rows import SamplingRows
from pageant.actors.executor.batch.scoring import Scorers
from pageant.actors.executor.batch.shaping import Shapers
from pageant.actors.executor.batch.trees import grow_trees
from pageant.actors.executor.guided.guiding import Guiding, RowTokens
from pageant.protocol.arrays import int32
from pageant.protocol.stepping import NewSequence, StepPlan
from pageant.protocol.verification import MISSING, Drafts, spread, within


class PlanMismatch(RuntimeError):
    """A plan that does not follow what is here: a message was lost, or there is a bug."""


class Batch:
    """The state of up to `max_num_seqs` sequences of up to `max_model_len` tokens.

    Belongs to the actor's loop. The inputs of a step are arrays of their own, so that the batch may change while the
    step is computed.

    Args:
        proposes: whether steps are for a runner with a proposer, which looks at each of them.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        end_tokens: tuple[int, ...] = (),
        processors: Processors | None = None,
        adapters: Sequence[str] = (),
        *,
        proposes: bool = False,
    ) -> None:
        # Drafts are made from every step.
        self._proposes = proposes
        self._adapters = AdapterRows(max_num_seqs, adapters)
        self._processors = Processors() if processors is None else processors
        self.block_size = block_size
        self._token_ids = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self._lengths = np.zeros(max_num_seqs, np.int32)
        self._tenures = np.zeros(max_num_seqs, np.int64)
        # int32 [rows]: the tokens with which each row's sequence began or resumed.
        self._known_lengths = np.zeros(max_num_seqs, np.int32)
        self.group(1)
        self._recurrent: RecurrentRows | None = None
        # int32 [rows]: block groups of `block_size` tokens in the tables, each with a block of every layer group.
        self._num_block_groups = np.zeros(max_num_seqs, np.int32)
        self._sampling = SamplingRows(max_num_seqs)
        self._shapers = Shapers(end_tokens)
        self._scorers = Scorers()
        self._embedded = EmbeddedPrompts()
        self._rotary = RotaryRows()
        self._encoded = EncodedPrompts()
        self._pooled = PooledSequences()
        self.end_tokens = EndTokens(end_tokens)
        self.guiding = Guiding(max_num_seqs)
        self._next_number = 1

    def group(self, num_groups: int) -> None:
        """Group layers: from the first plan on, tables have a block of each of so many groups."""
        rows, positions = self._token_ids.shape
        block_groups = -(-(positions - 1) // self.block_size)
        self._num_groups = num_groups
        self._block_tables = np.zeros((rows, block_groups, num_groups), np.int32)
        self._flat_tables = self._block_tables.reshape(rows, block_groups * num_groups)  # the same memory

    def follow_states(self) -> None:
        """Say of each step what the states of recurrent layers take in, from the first plan on."""
        self._recurrent = RecurrentRows(len(self._lengths))

    def add_adapter(self, name: str) -> None:
        """Let sequences have this adapter, from the next plan on."""
        self._adapters.add(name)

    def remove_adapter(self, name: str, why: str) -> None:
        """Let no sequence have this adapter, from the next plan on. Those that had it fail as soon as they draw."""
        self._adapters.remove(name, why)

    def clear(self) -> None:
        """Forgets every sequence: a new scheduler starts from nothing."""
        self._adapters.clear()
        self._lengths[:] = 0
        self._num_block_groups[:] = 0
        self._shapers.clear()
        self._scorers.clear()
        self._embedded.clear()
        self._rotary.clear()
        self._encoded.clear()
        self._pooled.clear()
        self._processors.clear()
        self.guiding.clear()
        self._next_number = 1

    def apply(self, plan: StepPlan) -> StepInputs:
        """Takes in a plan and returns its step.

        Raises:
            PlanMismatch: the plan does not follow the last one.
        """
        if plan.number != self._next_number:
            raise PlanMismatch(f"plan {plan.number} came, {self._next_number} was expected")
        self._next_number += 1
        return self._take_in(plan)

    def go_on(self, plan: StepPlan, steps: int) -> StepInputs:
        """The step of a plan that comes so many after its first.

        Raises:
            PlanMismatch: it computes what is not known, or has no place.
        """
        if len(self._processors) or self._shapers.any_follows(plan.rows.tolist()):
            raise PlanMismatch(
                f"plan {plan.number} has several steps, and its tokens must be known before the next"
            )
        return self._take_in(
            msgspec.structs.replace(
                plan,
                freed_rows=int32(),
                new=(),
                grown_rows=int32(),
                grown_counts=int32(),
                grown_blocks=int32(),
                copy_sources=int32(),
                copy_destinations=int32(),
                starts=plan.starts + np.int32(steps),
            )
        )

    def _take_in(self, plan: StepPlan) -> StepInputs:
        if len(plan.freed_rows):
            self._free(plan.freed_rows)
        for sequence in plan.new:
            self._add(sequence)
        self._grow(plan)
        ends = plan.starts + plan.num_tokens
        unknown = plan.rows[ends > self._lengths[plan.rows]]
        if not self.guiding.are_stalled(unknown):  # else nobody knew when this was planned: it is void
            raise PlanMismatch(f"plan {plan.number} computes tokens that are not known here")
        if len(plan.draft_ids):
            ends = self._put_drafts(plan, ends)
        if (ends > self._num_block_groups[plan.rows] * self.block_size).any():
            raise PlanMismatch(f"plan {plan.number} computes tokens for which there are no blocks")
        inputs = self._pack(plan)
        self._token_ids[inputs.rows, inputs.sampling.position] = UNKNOWN
        self._lengths[inputs.rows] = inputs.sampling.position + 1
        return inputs

    def _free(self, rows: Int32) -> None:
        self._lengths[rows] = 0
        self._adapters.free(rows)
        self._tenures[rows] += 1
        self._num_block_groups[rows] = 0
        self._shapers.free(rows)
        self._scorers.free(rows)
        self._embedded.free(rows.tolist())
        self._rotary.free(rows.tolist())
        self._encoded.free(rows.tolist())
        self._pooled.free(rows.tolist())
        self._processors.free(rows)
        self.guiding.free(rows.tolist())

    def _put_drafts(self, plan: StepPlan, ends: Int32) -> Int32:
        """Drafts stand where the tokens that they guess will, those of a tree one after another. Returns the ends
        of the rows with them."""
        if np.any((plan.draft_counts > 0) & ((ends != self._lengths[plan.rows]) | ~plan.draws)):
            raise PlanMismatch(f"plan {plan.number} has drafts that follow no last token")
        rows = np.repeat(plan.rows, plan.draft_counts)
        self._token_ids[rows, np.repeat(ends, plan.draft_counts) + within(plan.draft_counts)] = plan.draft_ids
        self.guiding.guess(plan.rows, ends.astype(np.int64), plan.draft_counts, plan.draft_ids)
        return ends + plan.draft_counts

    def take_tokens(self, inputs: StepInputs, token_ids: Int64, void: Sequence[int] = ()) -> RowTokens:
        """The tokens that a step drew, some of which may be MISSING. Returns those that count.

        A row may have another sequence by now: when memory is lost, nobody waits for the steps at hand.

        Args:
            void: places whose tokens will never come; others that are missing come late.
        """
        rows, positions = inputs.rows, inputs.sampling.position
        same = self.are_there(inputs)
        kept = (token_ids != MISSING) & same
        if (verifying := inputs.verifying) is not None:
            accepted, right = verifying.drafts.verify(token_ids.astype(np.int32))
            # The others may be a token longer by now: they are planned ahead.
            some = same[verifying.drafts.first_places] & (verifying.drafts.counts > 0)
            self._lengths[verifying.rows[some]] = (verifying.starts + accepted + 1)[some]
            right = right[kept[right]]
        for place in void:
            if same[place]:
                row = int(rows[place])
                deferred = self.guiding.position_deferred(row)
                known = positions[place] if deferred is None else deferred + 1
                self._lengths[row] = min(self._lengths[row], known)
        if verifying is not None:
            rows, positions, token_ids = rows[right], positions[right], token_ids[right]
        elif not kept.all():
            rows, positions, token_ids = rows[kept], positions[kept], token_ids[kept]
        return self._take(rows, positions, token_ids)

    def take_back(self, inputs: StepInputs) -> None:
        """A step that was packed is not computed."""
        there = self.are_there(inputs)
        rows, positions = inputs.rows[there], inputs.sampling.position[there]
        self._lengths[rows] = np.minimum(self._lengths[rows], positions)

    def are_there(self, inputs: StepInputs) -> npt.NDArray[np.bool_]:
        """[D]: whether the rows that a step draws for still have the sequences that they had."""
        found: npt.NDArray[np.bool_] = self._tenures[inputs.rows] == inputs.tenures
        return found

    def take_late(self, rows: Int64, positions: Int64, token_ids: Int64, guides: Sequence[int]) -> RowTokens:
        """Tokens that were deferred, for rows with these guides. Returns those that count: as with `take_tokens`, a
        row may have another sequence by now."""
        there = np.array([self.guiding.is_open(guide) for guide in guides], np.bool_)
        rows, positions, token_ids = rows[there], positions[there], token_ids[there]
        self.guiding.arrived(rows.tolist())
        return self._take(rows.astype(np.int32), positions, token_ids)

    def _take(self, rows: Int32, positions: Int64, token_ids: Int64) -> RowTokens:
        self._token_ids[rows, positions] = token_ids
        self._shapers.take(rows, positions, token_ids)
        return RowTokens(rows, positions, token_ids)

    def known_tokens(self, row: int) -> Int32:
        """A row's tokens, as far as they are known."""
        token_ids = self._token_ids[row, : self._lengths[row]]
        unknown = np.flatnonzero(token_ids == UNKNOWN)
        return token_ids[: unknown[0]] if len(unknown) else token_ids

    @property
    def needs_tokens(self) -> bool:
        """Tell whether a plan can be applied only when the tokens of all steps before it are there."""
        return self._shapers.count_tokens or len(self._processors) > 0

    def prefill_tokens(self, plan: StepPlan) -> int:
        """Return how many tokens the last plan computes that were known when their sequences took their rows."""
        return int(plan.num_tokens[plan.starts < self._known_lengths[plan.rows]].sum())

    def _add(self, sequence: NewSequence) -> None:
        row = sequence.row
        self._tenures[row] += 1
        length, blocks = len(sequence.token_ids), len(sequence.blocks)
        self._token_ids[row, :length] = sequence.token_ids
        self._lengths[row] = self._known_lengths[row] = length
        self._flat_tables[row, :blocks] = sequence.blocks
        self._num_block_groups[row] = blocks // self._num_groups
        if self._recurrent is not None:
            self._recurrent.add(row)
        self._sampling.admit(sequence)
        self._adapters.admit(sequence)
        self._shapers.add(sequence)
        self._scorers.add(sequence)
        self._embedded.add(sequence)
        self._rotary.add(sequence)
        self._encoded.add(sequence)
        self._pooled.add(sequence)
        self._processors.add(sequence)
        self.end_tokens.add(sequence)
        self.guiding.add(sequence)

    def _grow(self, plan: StepPlan) -> None:
        """Appends new blocks to the tables of their rows."""
        counts = plan.grown_counts
        if not len(plan.grown_blocks):
            return
        rows = np.repeat(plan.grown_rows, counts)
        offsets = within(counts) + np.repeat(
            self._num_block_groups[plan.grown_rows] * self._num_groups, counts
        )
        self._flat_tables[rows, offsets] = plan.grown_blocks
        self._num_block_groups[plan.grown_rows] += counts // self._num_groups

    def _pack(self, plan: StepPlan) -> StepInputs:
        rows, counts, drawn = plan.rows, plan.num_tokens, plan.draws.astype(np.int32)
        if len(plan.draft_ids):
            counts, drawn = counts + plan.draft_counts, drawn + plan.draft_counts
        packed = pack(rows, plan.starts, counts, self._token_ids, self._block_tables, self.block_size)
        # A row draws after each of its last `drawn` tokens.
        draw_rows, drafts_before = spread(rows, drawn), within(drawn)
        last_tokens = spread(packed.query_starts[1:].astype(np.int64) - drawn, drawn) + drafts_before
        verifying = self._verifying(plan)
        positions, ancestors = packed.positions, None
        if len(plan.draft_parents) and verifying is not None:
            first = last_tokens[(np.cumsum(drawn) - drawn)[drawn > 0]]
            positions, ancestors = grow_trees(positions, first, verifying.drafts)
        draw_positions = positions[last_tokens] + 1
        states = None
        if self._recurrent is not None:
            drafts = plan.draft_counts if len(plan.draft_ids) else None
            states = self._recurrent.of_step(rows, plan.starts, plan.num_tokens, drafts)
        ahead = self._ahead(verifying)
        return StepInputs(
            **vars(packed) | {"positions": positions, "states": states},
            last_tokens=last_tokens.astype(np.int64, copy=False),
            rows=draw_rows,
            tenures=self._tenures[draw_rows],
            sampling=self._sampling.of_step(
                draw_rows, draw_positions, self._shapers.of_step(draw_rows, draw_positions, ahead)
            ),
            scores=self._scorers.of_step(plan, self._token_ids),
            copy_sources=plan.copy_sources,
            copy_destinations=plan.copy_destinations,
            processing=self._processors.of_step(draw_rows, draw_positions, self._token_ids, ahead),
            verifying=verifying,
            ancestors=ancestors,
            proposing=self._proposing(plan),
            guided=self.guiding.of_step(draw_rows, draw_positions, drafts_before.astype(np.int64)),
            blind=self.guiding.unknown_rows(draw_rows) if self.needs_tokens else frozenset(),
            adapted=self._adapters.of_step(rows, counts),
            embedded=self._embedded.of_step(rows, plan.starts, counts),
            rotary=self._rotary.of_step(rows, counts, positions),
            encoded=self._encoded.of_step(rows),
            pooled=self._pooled.of_step(rows, plan.starts, counts, plan.draws, drawn),
            failing=self._adapters.failing(draw_rows),
        )

    def _verifying(self, plan: StepPlan) -> Verifying | None:
        if not len(plan.draft_ids):
            return None
        drawing = plan.draws
        drafts = Drafts(plan.draft_counts[drawing], plan.draft_ids, plan.draft_parents)
        return Verifying(
            plan.rows[drawing], (plan.starts + plan.num_tokens)[drawing].astype(np.int64), drafts
        )

    def _proposing(self, plan: StepPlan) -> Proposing | None:
        if not (self._proposes or len(plan.wanted)):
            return None
        return Proposing(
            wanted=plan.wanted,
            rows=plan.rows,
            starts=plan.starts,
            draws=plan.draws,
            new=plan.new,
            block_tables=self._block_tables.copy(),
            num_block_groups=self._num_block_groups.copy(),
        )

    def _ahead(self, verifying: Verifying | None) -> dict[int, list[int]]:
        """The drafts that come before each of a step's places, for rows whose tokens change how they draw."""
        if verifying is None or not (self._shapers or self._processors):
            return {}
        asking = [row in self._shapers or row in self._processors for row in verifying.rows.tolist()]
        return verifying.drafts.paths(asking)
