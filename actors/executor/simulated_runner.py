"""A runner without a model: it keeps a number in each slot of its KV memory, and reads them all back at each draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.inputs import AdaptedTokens, Packed, SamplingColumns, StepInputs
from pageant.actors.executor.batch.pooled import PooledStep
from pageant.actors.executor.batch.scoring import Scored
from pageant.actors.executor.batch.trees import kept_slots
from pageant.actors.executor.guided.pending_sample import PendingSample, PooledResults
from pageant.actors.executor.options import ExecutorOptions
from pageant.actors.executor.simulated_arena import TaggedMemory, simulated_layout
from pageant.actors.executor.simulated_drafts import SimulatedProposer
from pageant.actors.executor.simulated_draws import (
    SimulatedDraw,
    SimulatedPendingSample,
    SimulatedPooling,
    logprob_columns,
)
from pageant.actors.executor.simulated_model import (
    FIRST_TOKEN,
    NUM_TOKENS,
    adapted,
    noise_of,
    pooled,
    scores_of,
    shape_scores,
    shaped_places,
    written,
)
from pageant.actors.executor.tiers.moving import Move, Way
from pageant.actors.executor.tiers.stored_memory import StoredMemory
from pageant.protocol.arrays import int64
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.verification import MISSING, NO_DRAFTS, Drafts

if TYPE_CHECKING:
    from pageant.actors.executor.runners.model_runner import StepTokens

Int32 = npt.NDArray[np.int32]
UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class SimulatedOptions(ExecutorOptions, frozen=True, kw_only=True):
    """Options of `Executor`, with an `alphabet` of so many tokens, of `vocab_size`; `model` is not looked at.

    Layers are in groups with these `windows`. Tokens of a `device` other than the CPU are on their way for a while.
    With `whole_prompts`, sequences are computed whole, as encoders need it.
    """

    model: str = ""
    alphabet: int = NUM_TOKENS
    vocab_size: int = FIRST_TOKEN + NUM_TOKENS
    windows: tuple[int | None, ...] = (None,)
    whole_prompts: bool = False


class SimulatedHost:
    """Stand-in for the host's memory and its disk: the contents of blocks, by their numbers there."""

    def __init__(self, kv: UInt64) -> None:
        self._kv = kv
        self._slots: dict[int, UInt64] = {}
        self._disk: dict[int, UInt64] = {}
        self.block_bytes = int(kv[0].nbytes)

    def move(self, move: Move) -> None:
        """See `model_runner.Host`."""
        for source, destination in zip(move.sources.tolist(), move.destinations.tolist(), strict=True):
            match move.way:
                case Way.SAVE:
                    self._slots[destination] = self._kv[source].copy()
                case Way.RESTORE:
                    self._kv[destination] = self._slots[source]
                case Way.READ:
                    self._kv[destination] = self._disk[source]
                case Way.WRITE:
                    self._disk[destination] = self._slots[source]


class SimulatedRunner:
    """See `model_runner.ModelRunner`.

    Args:
        rank: its place among the members of its group. In a store, each member's share of a block is what that member
            has of it.
    """

    dtype = "float32"
    kernels = ""

    def __init__(self, options: SimulatedOptions, *, ready: bool, rank: int = 0) -> None:
        self.windows, self.num_states = options.windows, 0
        self.whole_prompts = options.whole_prompts
        self.max_model_len = options.max_model_len
        needed = -(-options.max_model_len // options.block_size) * len(self.windows)
        self.num_blocks = options.num_blocks or 4 * needed
        self._vocabulary = np.arange(options.vocab_size, dtype=np.uint64)
        self._alphabet = self._vocabulary[FIRST_TOKEN : FIRST_TOKEN + options.alphabet]
        self._kv = np.zeros((self.num_blocks, options.block_size), np.uint64)
        self._last_drawn = np.zeros(options.max_num_seqs, np.int64)  # by row
        self._ready = ready
        self.proposer: SimulatedProposer | None = None
        if options.speculation is not None and options.speculation.on_device:
            self.proposer = SimulatedProposer(
                options.speculation, self._alphabet, options.block_size, options.max_model_len
            )
        self.host = SimulatedHost(self._kv)
        self.stored: StoredMemory | None = None
        if options.store_bytes:
            # The content of a block follows from its tokens, of whichever model.
            halves = np.split(self._kv.view(np.uint8), 2, axis=1)
            layout = simulated_layout(self._kv[0].nbytes, options.num_members, rank)
            kind = b"simulated-blocks"
            self.stored = TaggedMemory(halves, layout, kind)

    @property
    def memory_bytes(self) -> dict[str, int]:
        """See `model_runner.ModelRunner`."""
        return {"kv": self._kv.nbytes}

    @property
    def is_preparing(self) -> bool:
        """See `ModelRunner`."""
        return False

    @property
    def preparations(self) -> dict[str, int]:
        """See `model_runner.ModelRunner`."""
        return {}

    def leave(self) -> None:
        """See `model_runner.ModelRunner`."""

    def add_adapter(self, name: str, folder: str) -> None:
        """See `model_runner.ModelRunner`. What an adapter adds follows from its name."""

    def remove_adapter(self, name: str) -> None:
        """See `model_runner.ModelRunner`."""

    def launch(self, inputs: StepInputs) -> StepTokens | PendingSample:
        """See `model_runner.ModelRunner`."""
        self.copy(inputs.copy_sources, inputs.copy_destinations)
        self.write(inputs, self.known(inputs), inputs.adapted)
        all_seen = self.seen_by_all(inputs)
        scores, prompts = inputs.scores, None
        if scores is not None and scores.prompt is not None:
            prompts = logprob_columns(scores.prompt, all_seen[scores.prompt.places], scores.prompt.token_ids)
        scored = None if scores is None else scores.drawn
        seen = all_seen[inputs.last_tokens]
        drawn = self.drawn(seen, inputs.sampling)
        pooling = None if inputs.pooled is None else self._pool(inputs, inputs.pooled, seen)
        if inputs.guided is None and not len(shaped_places(inputs.sampling.shaping)):
            return self._draw(inputs.rows, seen, drawn, scored, prompts, inputs, pooling=pooling)
        shaped, shapes = self._shaped(inputs, seen)
        if inputs.guided is None:
            drawn[shaped] = shapes.argmax(axis=1)
            return self._draw(inputs.rows, seen, drawn, scored, prompts, inputs, pooling=pooling)
        pending = SimulatedPendingSample(
            places=np.arange(len(inputs.rows)),
            guided=inputs.guided,
            rows=inputs.rows,
            seen=seen,
            token_ids=drawn,
            shaped=shaped,
            scores=shapes,
            scored=scored,
            prompts=prompts,
            inputs=inputs,
            pooling=pooling,
        )
        return pending if len(inputs.guided.late) else self.draw(pending)

    def known(self, packed: Packed) -> Int64:
        """Return the tokens of a step, int64 [T], with those that the step before drew."""
        token_ids = packed.token_ids.copy()
        token_ids[packed.unknown] = self._last_drawn[packed.unknown_rows]
        return token_ids

    def draw(self, pending: PendingSample) -> StepTokens:
        """See `model_runner.ModelRunner`."""
        assert isinstance(pending, SimulatedPendingSample), "it is one of ours"
        guided = pending.guided
        late, deferred = guided.late, guided.deferred
        kept = pending.part(deferred) if len(deferred) else None
        places, bits = guided.present()
        scores = pending.scores.copy()
        if len(places):
            allowed = np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), axis=1, bitorder="little")
            rows = np.searchsorted(pending.shaped, places)
            scores[rows] = np.where(allowed[:, : len(self._vocabulary)], scores[rows], -np.inf)
        token_ids = pending.token_ids.copy()
        token_ids[pending.shaped] = scores.argmax(axis=1)
        drawn = self._draw(
            *(pending.rows, pending.seen, token_ids, pending.scored, pending.prompts, pending.inputs),
            missing=late,
            pooling=pending.pooling,
        )
        drawn.failed, drawn.late = guided.failures(), kept
        return drawn

    def _pool(self, inputs: StepInputs, step: PooledStep, seen: UInt64) -> SimulatedPooling:
        """Return the results of sequences that end: what their last tokens see, and how many tokens they have."""
        if self.whole_prompts:
            assert all(part.begins and part.place is not None for part in step.parts), (
                "they are computed whole"
            )
        places = int64(step.places)
        return SimulatedPooling(places, pooled(seen[places], inputs.sampling.position[places]))

    def drawn(self, seen: UInt64, sampling: SamplingColumns) -> Int64:
        """The token of each drawing row that nothing shapes, after slots whose sums are `seen`."""
        noise = noise_of(seen, sampling, np.arange(len(seen)))
        found: Int64 = FIRST_TOKEN + scores_of(noise, self._alphabet).argmax(axis=1)
        return found

    def _shaped(self, inputs: StepInputs, seen: UInt64) -> tuple[Int64, Float32]:
        """The drawing rows that are guided or shaped, and the scores of all tokens there."""
        guided = int64() if inputs.guided is None else inputs.guided.places
        places = np.union1d(shaped_places(inputs.sampling.shaping), guided)
        scores = scores_of(noise_of(seen[places], inputs.sampling, places), self._vocabulary)
        silent = np.ones(len(self._vocabulary), np.bool_)
        silent[self._alphabet.astype(np.int64)] = False
        scores[np.ix_(~np.isin(places, guided), silent)] = -np.inf
        shape_scores(scores, places, inputs.sampling.shaping)
        return places, scores

    def _draw(
        self,
        rows: npt.NDArray[np.int32],
        seen: UInt64,
        token_ids: Int64,
        scored: Scored | None,
        prompts: Logprobs | None,
        inputs: StepInputs | None,
        missing: Int64 | None = None,
        pooling: PooledResults | None = None,
    ) -> SimulatedDraw:
        self._last_drawn[rows] = token_ids
        logprobs = None
        if scored is not None:
            logprobs = logprob_columns(scored, seen[scored.places], token_ids[scored.places])
        drawn = SimulatedDraw(token_ids, logprobs, prompts, self._ready)
        drawn.missing = int64() if missing is None else missing
        drawn.pooling = pooling
        if inputs is not None and (inputs.verifying is not None or inputs.proposing is not None):
            self._verify_and_propose(drawn, inputs, seen, token_ids.copy())
        return drawn

    def _verify_and_propose(
        self, drawn: SimulatedDraw, inputs: StepInputs, seen: UInt64, token_ids: Int64
    ) -> None:
        """Keeps what was right of a tree, and asks the proposer."""
        token_ids[drawn.missing] = MISSING
        drafts = Drafts(np.zeros(len(token_ids), np.int32), *NO_DRAFTS[1:])
        if inputs.verifying is not None:
            drafts = inputs.verifying.drafts
        accepted, places = drafts.verify(token_ids.astype(np.int32))
        if len(drafts.parents):
            self.move_slots(*kept_slots(inputs.slots, inputs.last_tokens, drafts.counts, accepted, places))
        if self.proposer is not None and inputs.proposing is not None:
            last = places[np.cumsum(accepted + 1) - 1].astype(np.int64)
            drawn.proposed = self.proposer.propose(inputs, last, token_ids[last], seen[last])

    def move_slots(self, sources: Int64, destinations: Int64) -> None:
        """Copy what tokens left in slots, int64 [S], to others, int64 [S]."""
        self._kv.reshape(-1)[destinations] = self._kv.reshape(-1)[sources]

    def seen_by_all(self, inputs: StepInputs) -> UInt64:
        """Return what all members of a group see together for each of a step's tokens, [T]."""
        return self.seen(inputs, inputs.ancestors)

    def write(self, packed: Packed, token_ids: Int64, adapters: Sequence[AdaptedTokens] = ()) -> None:
        """Write what tokens, int64 [T], leave in their slots."""
        values = written(token_ids, packed.positions)
        for adapter, tokens in adapters:
            values[tokens] = adapted(values[tokens], adapter)
        for slots in packed.slots:
            self._kv.reshape(-1)[slots] = values

    def copy(self, sources: Int32, destinations: Int32) -> None:
        """Copy blocks, int32 [C]: all are read before any is written."""
        self._kv[destinations] = self._kv[sources]

    def seen(self, inputs: Packed, ancestors: Int64 | None) -> UInt64:
        """Return for each token the sum of its sequence's slots up to its own; in a tree, of its ancestors."""
        counts = np.diff(inputs.query_starts)
        sequences = np.repeat(np.arange(len(counts)), counts)
        behind = inputs.query_starts[1:][sequences] - np.arange(len(sequences))
        ends = inputs.context_lengths[sequences] - behind
        found = np.zeros(len(ends), np.uint64)
        with np.errstate(over="ignore"):
            for group, (window, tables) in enumerate(zip(self.windows, inputs.block_tables, strict=True)):
                sums = np.cumsum(self._kv[tables].reshape(len(tables), -1), axis=1, dtype=np.uint64)
                seen = sums[sequences, ends]
                if window is not None:
                    seen -= np.where(
                        ends >= window, sums[sequences, np.maximum(ends - window, 0)], np.uint64(0)
                    )
                found += seen * np.uint64(2 * group + 1)
            if ancestors is not None:
                self._see_ancestors(found, inputs, ancestors)
        return found

    def _see_ancestors(self, seen: UInt64, inputs: Packed, of_tokens: Int64) -> None:
        """Mutates what is seen in trees: bit 0 of a token's ancestors is the root, which sees all before it."""
        assert self.windows == (None,), "trees are seen here only where there are no windows"
        values, root = self._kv.reshape(-1)[inputs.slots[0]], 0
        for token, ancestors in enumerate(of_tokens.tolist()):
            if ancestors == 1:
                root = token
            elif ancestors:
                own = [root + place for place in range(1, ancestors.bit_length()) if ancestors >> place & 1]
                seen[token] = seen[root] + values[own].sum()
