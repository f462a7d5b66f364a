"""Small steps on a CPU as recorded calls of kernels and of torch, made again without Python between them.

A recording is bound to how many tokens and sequences a step has, and to where its inputs are; so inputs are copied
to where all recordings read them. What the tokens are, and how many belong to which sequence, is free. A step is
recorded when one of its shape comes for the second time: a prompt's last chunk is seldom as long as another's. To
record one takes as long as several steps (0.3 to 1.4 s for prompts of 128 to 325 tokens of a model of 0.6 billion
weights), and spares a long one little: so those come more often before.

Where nothing comes between a step's hidden states and its tokens, all of it is one recording, else what there is up
to its logits. With Python before the head, before the draw and after it, the threads of the kernels had nothing to do
for half a millisecond of each step. Masks may come in between (`guided_ends`): the recording waits for them, and ends
with the logits where that is not worth it any more. Python there takes longer than most masks are late.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import Enum, auto

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.actors.executor.batch.inputs import Packed, SamplingColumns, StepInputs
from pageant.actors.executor.runners.graphs import Forward
from pageant.actors.executor.runners.guided_ends import Awaiting, GuidedEnds, Logits, ShapeEnd, unheld
from pageant.kernels.base import AttentionBatch, KVCache, SamplingTensors
from pageant.kernels.quantized import QuantizedWeight
from pageant.kernels.recording import RecordingKernels
from pageant.kernels.tiled import LinearWeight

__all__ = ["Awaiting", "StepPrograms"]

log = logging.getLogger("pageant.executor")

_TOKENS_MAX = 512  # of a step; beyond, what Python costs is nothing beside what is computed
_PROGRAMS_MAX = 512  # some tens of kilobytes each
_TOKENS_FEW = 64  # of prompts, which are recorded as soon as decodes are
_LONG_COME = 8  # times, before they are recorded


class _Kind(Enum):
    """Kind of a recording: what it computes."""

    HIDDEN = auto()
    HIDDEN_OF_TREES = auto()
    LOGITS = auto()
    TOKENS = auto()
    GUIDED_TOKENS = auto()


@dataclass
class _Shape:
    """Steps of a kind, with so many tokens and sequences."""

    replay: Callable[[], Tensor] | None = None
    refused: bool = False
    came: int = 1  # times
    logits: Tensor | None = None  # where they may be read
    drawn: npt.NDArray[np.int64] | None = None  # where the tokens are
    guided: ShapeEnd = field(default_factory=ShapeEnd)


class StepPrograms:
    """Computes the hidden states of small steps, their logits, or their tokens.

    Args:
        forward, logits, head: see `Decoder`.
        kernels: what they compute with. Steps of a shape that these cannot capture are computed without.
        last_drawn: int64 [rows of the batch], the token that each drew last.
        clock: to tell how long steps take, by which it is decided how long they wait for masks.
        check: raises what a replay met and could not raise; None where nothing can fail.
        taken_in: caches with states that take in a step's tokens, which may happen once only. To record a step is to
            compute it, before it is played or refused; so their blocks are then given back what they held.
    """

    def __init__(
        self,
        forward: Forward,
        logits: Logits,
        head: LinearWeight | None,
        kernels: RecordingKernels,
        *,
        num_groups: int,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        last_drawn: Tensor,
        clock: Callable[[], float],
        check: Callable[[], None] | None = None,
        taken_in: Sequence[KVCache] = (),
    ) -> None:
        self._forward = forward
        self._check = check
        self._taken_in, self._block_size = taken_in, block_size
        self._logits = logits
        self._halved_head = head if isinstance(head, QuantizedWeight) and head.in_halves else None
        self._kernels = kernels
        self._last_drawn = last_drawn.numpy()
        self._seqs_max = max_num_seqs
        self._shapes: OrderedDict[tuple[_Kind, int, int], _Shape] = OrderedDict()
        self._ends = GuidedEnds(kernels, logits, _TOKENS_MAX, clock)
        self._token_ids, self._positions, self._ancestors = (
            torch.zeros(_TOKENS_MAX, dtype=torch.int64) for _ in range(3)
        )
        self._slots = torch.zeros(num_groups, _TOKENS_MAX, dtype=torch.int64)
        blocks = -(-max_model_len // block_size)
        self._starts = torch.zeros(max_num_seqs + 1, dtype=torch.int32)
        self._lengths = torch.zeros(max_num_seqs, dtype=torch.int32)
        self._tables = torch.zeros(num_groups, max_num_seqs, blocks, dtype=torch.int32)
        self._inputs = [
            part.numpy()
            for part in (
                self._token_ids,
                self._positions,
                self._slots,
                self._starts,
                self._lengths,
                self._tables,
            )
        ]

        self._params = SamplingTensors(
            temperature=torch.zeros(_TOKENS_MAX),
            top_k=torch.zeros(_TOKENS_MAX, dtype=torch.int32),
            top_p=torch.zeros(_TOKENS_MAX),
            min_p=torch.zeros(_TOKENS_MAX),
            seed=torch.zeros(_TOKENS_MAX, dtype=torch.int64),
            sample=torch.zeros(_TOKENS_MAX, dtype=torch.int32),
            position=torch.zeros(_TOKENS_MAX, dtype=torch.int64),
        )
        self._columns = [
            (one.name, value.numpy())
            for one in fields(self._params)
            if isinstance(value := getattr(self._params, one.name), Tensor)
        ]

    @property
    def num_recorded(self) -> int:
        """Return how many recordings there are."""
        return sum(shape.replay is not None for shape in self._shapes.values())

    def run(self, inputs: Packed, ancestors: npt.NDArray[np.int64] | None = None) -> Tensor | None:
        """Return hidden states [T, hidden_size], good until the next call, or None where it is not for this.

        Args:
            ancestors: [T], see `AttentionBatch`.
        """
        shape = self._shape_of(_Kind.HIDDEN if ancestors is None else _Kind.HIDDEN_OF_TREES, inputs)
        if shape is None:
            return None
        self._write(inputs)
        if ancestors is not None:
            self._ancestors[: len(ancestors)] = torch.from_numpy(ancestors)
        return self._play(shape, inputs, lambda: self._hidden(inputs, with_trees=ancestors is not None))

    def logits(self, inputs: StepInputs) -> Tensor | None:
        """Return the logits [T, V] after each of a step's tokens, good until the next call, or None where it is not for
        this.

        Args:
            inputs: of a step that `draws_after_each`.
        """
        shape = self._shape_of(_Kind.LOGITS, inputs)
        if shape is None:
            return None
        self._write(inputs)

        def run() -> Tensor:
            hidden = self._hidden(inputs)
            shape.logits = unheld(self._logits(hidden))
            return hidden

        return None if self._play(shape, inputs, run) is None else shape.logits

    def draw(self, inputs: StepInputs) -> npt.NDArray[np.int64] | Awaiting | None:
        """Return the tokens [T] that are drawn after those of a step; where a mask has not come, what they are to be
        drawn from; or None where it is not for this.

        Args:
            inputs: of a step that `only_draws`.
        """
        guided = inputs.guided
        shape = self._shape_of(_Kind.TOKENS if guided is None else _Kind.GUIDED_TOKENS, inputs)
        if shape is None or (guided is not None and not guided.table.may_be_played):
            return None
        self._write(inputs)
        self._write_columns(inputs.sampling)
        if guided is not None:
            held = guided.table.held
            if shape.guided.held is not held:  # they may be elsewhere than they were when it was recorded
                shape.guided.held, shape.replay = held, None
            self._ends.write(shape.guided, guided, len(inputs.rows))
        drawn = self._play(shape, inputs, lambda: self._tokens(inputs, shape))
        if drawn is None:
            return None
        if guided is not None and (awaiting := self._ends.awaiting(shape.guided)) is not None:
            return awaiting
        if shape.drawn is None:
            shape.drawn = drawn.numpy()
        token_ids = shape.drawn.copy()  # the next step writes where they are
        self._last_drawn[inputs.rows] = token_ids
        return token_ids

    def _shape_of(self, kind: _Kind, inputs: Packed) -> _Shape | None:
        """Return the shape of the step, if it is not too large, came before, and can be recorded.

        Steps whose tokens recurrent layers keep for later, or take in only now, are not: how many is another in each.
        """
        tokens, sequences = len(inputs.positions), len(inputs.context_lengths)
        if tokens > _TOKENS_MAX or sequences > self._seqs_max:
            return None
        if inputs.states is not None and not inputs.states.are_plain:
            return None
        key = kind, tokens, sequences
        shape = self._shapes.get(key)
        if shape is None:
            self._shapes[key] = _Shape()
            if len(self._shapes) > _PROGRAMS_MAX:
                self._shapes.popitem(last=False)
            return None
        self._shapes.move_to_end(key)
        shape.came += 1
        is_long = tokens > max(_TOKENS_FEW, sequences)
        return None if shape.refused or (is_long and shape.came < _LONG_COME) else shape

    def _play(self, shape: _Shape, inputs: Packed, run: Callable[[], Tensor]) -> Tensor | None:
        """Play what is recorded of the shape, or compute what `run` computes now."""
        if shape.replay is None:
            try:
                with torch.inference_mode(), self._given_back(inputs):
                    shape.replay, shape.drawn = self._kernels.capture(run), None
            except RuntimeError as error:
                log.debug("steps are not recorded: %s", error)
                shape.refused = True
                return None
        result = shape.replay()
        if self._check is not None:
            self._check()
        return result

    @contextmanager
    def _given_back(self, inputs: Packed) -> Iterator[None]:
        """Give the blocks of states that a step writes to back what they held before, at the end of the context."""
        blocks = torch.from_numpy(np.unique(inputs.slots // self._block_size))
        parts = [part for cache in self._taken_in for part in cache]
        held = [part[blocks] for part in parts]
        try:
            yield
        finally:
            for part, before in zip(parts, held, strict=True):
                part[blocks] = before

    def _hidden(self, inputs: Packed, *, with_trees: bool = False) -> Tensor:
        """Compute hidden states of a step of the shape of `inputs`, which have been written."""
        tokens, sequences = len(inputs.positions), len(inputs.context_lengths)
        positions = self._positions[:tokens]
        batch = AttentionBatch.of_groups(
            self._tables[:, :sequences],
            self._slots[:, :tokens],
            query_starts=self._starts[: sequences + 1],
            context_lengths=self._lengths[:sequences],
            positions=positions,
            max_query_length=inputs.max_query_length,
            max_context_length=inputs.max_context_length,
            ancestors=self._ancestors[:tokens] if with_trees else None,
        )
        return self._forward(self._token_ids[:tokens], positions, batch)

    def _tokens(self, inputs: StepInputs, shape: _Shape) -> Tensor:
        hidden = self._hidden(inputs)
        if inputs.guided is not None:
            return self._ends.tokens(shape.guided, hidden, self._params)
        needed = None
        if self._halved_head is not None and len(hidden) == 1:
            needed = self._kernels.screen(hidden, self._halved_head, self._params)
        # All of the columns: it reads as many as there are rows.
        return self._kernels.sample(self._logits(hidden, needed), self._params)

    def _write(self, inputs: Packed) -> None:
        token_ids, positions, slots, starts, lengths, tables = self._inputs
        tokens, (_, sequences, width) = len(inputs.positions), inputs.block_tables.shape
        token_ids[:tokens] = inputs.token_ids
        if len(inputs.unknown):
            token_ids[inputs.unknown] = self._last_drawn[inputs.unknown_rows]
        positions[:tokens] = inputs.positions
        slots[:, :tokens] = inputs.slots
        starts[: sequences + 1] = inputs.query_starts
        lengths[:sequences] = inputs.context_lengths
        tables[:, :sequences, :width] = inputs.block_tables

    def _write_columns(self, sampling: SamplingColumns) -> None:
        rows = len(sampling.position)
        for name, column in self._columns:
            column[:rows] = getattr(sampling, name)
