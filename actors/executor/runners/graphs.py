"""Steps as CUDA graphs: hundreds of kernels that are launched at once.

A graph is bound to shapes and addresses, so a step is padded to the next of a few shapes, and its inputs are copied to
where the graph reads them. Tokens that are too many belong to no sequence and write to a spare block; sequences that
are too many are empty. There is a graph for each of two ranges of context lengths, since attention launches as many
programs as the longest context can need: short contexts do not pay for `max_model_len`.

All `shapes` that plain steps have are captured before the first step (`compute`). A shape that only some models need,
for drafts to verify, is captured when a step first has it, after that step was computed without. All share the memory
of what they compute between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from pageant.actors.executor.batch.inputs import UNKNOWN, StepInputs
from pageant.actors.executor.runners.staging import Staging, packed_bytes
from pageant.kernels.base import AttentionBatch

__all__ = ["Capture", "CudaCapture", "GraphShape", "StepGraphs", "is_decode", "padded_context", "padded_size"]

log = logging.getLogger("pageant.executor")

_SIZES = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
_MIXED_SIZES = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Tokens of a step that has prompts. With more, a GPU computes for longer than a host needs to launch the kernels."""
_FEW_SEQUENCES = 16
"""Sequences of a mixed step, for which there is a graph beside that for all: empty ones are not for nothing."""
_SHORT_CONTEXT = 2048
_VERIFIED_MAX = 8
"""Tokens of a sequence with drafts, at most; such a step is padded to a power of two of each sequence."""

Forward = Callable[[Tensor, Tensor, AttentionBatch], Tensor]


class GraphShape(NamedTuple):
    """Shape of a graph: numbers that its steps do not exceed."""

    tokens: int
    sequences: int
    query_length: int
    context_length: int


def is_decode(inputs: StepInputs) -> bool:
    """Tell whether each of the step's sequences has one token."""
    return inputs.max_query_length == 1 and len(inputs.positions) == len(inputs.context_lengths)


def padded_size(rows: int, sizes: tuple[int, ...] = _SIZES) -> int | None:
    """The least batch size of a graph that holds so many rows."""
    return next((size for size in sizes if size >= rows), None)


def padded_context(longest: int, max_model_len: int) -> int:
    """The upper end of the range of lengths that the longest context is in."""
    # A graph of its own is worth it where it spares most of the programs.
    if longest <= _SHORT_CONTEXT and max_model_len >= 2 * _SHORT_CONTEXT:
        return _SHORT_CONTEXT
    return max_model_len


class Capture(Protocol):
    """Makes what was called once into something that can be played again."""

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a function that does what `run` does, to the same memory, and returns the same tensor."""


class CudaCapture:
    """Captures steps as CUDA graphs, which share a pool of memory: never two of them run at once."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """See `Capture`. Raises what cannot be captured of `run`, with the caller's stream restored."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Another thread may be waiting for an earlier step's tokens; that does no harm.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = run()
        except BaseException:
            # torch ends a capture before it restores the stream. Where ending it raises, this thread would go on in the
            # stream of the capture, unordered with the steps that other threads launch.
            torch.cuda.set_stream(stream)
            torch.cuda.synchronize()
            raise
        self._pool = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


@dataclass
class _Slot:
    """Place where a graph reads its inputs, and the graph."""

    memory: Tensor
    replay: Callable[[], Tensor] | None = None


class _Padded(NamedTuple):
    """A step's arrays at the size of a shape, in the order in which they are sent."""

    token_ids: np.ndarray
    sources: np.ndarray
    """The rows whose last drawn tokens these are instead, or UNKNOWN."""
    positions: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray
    slots: list[np.ndarray]
    """By group of layers."""

    def arrays(self) -> list[np.ndarray]:
        """Return all arrays."""
        return [*self[:5], *self.slots]


class StepGraphs:
    """Computes the hidden states of steps.

    Args:
        forward: of token ids, positions and a batch; it must not wait for the device.
        last_drawn: int64 [rows of the batch], the token that each drew last.
        spare_block: of the KV cache, that belongs to no sequence.
        tokens_max: of a step, at most.
    """

    def __init__(
        self,
        forward: Forward,
        capture: Capture,
        staging: Staging,
        *,
        last_drawn: Tensor,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        spare_block: int,
        num_groups: int = 1,
        tokens_max: int = 0,
    ) -> None:
        self._forward = forward
        self._capture: Capture | None = capture
        self._staging = staging
        self._last_drawn = last_drawn
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._spare_block = spare_block
        self._tokens_max = tokens_max
        self._rows_max = padded_size(max_num_seqs) or max(_SIZES)
        width = -(-max_model_len // block_size)
        device = last_drawn.device
        # One by one, so that each begins where kernels are compiled for.
        self._tables = [
            torch.full((self._rows_max, width), spare_block, dtype=torch.int32, device=device)
            for _ in range(num_groups)
        ]
        self._slots: dict[GraphShape, _Slot] = {}

    @property
    def num_captured(self) -> int:
        """Return how many graphs there are."""
        return sum(slot.replay is not None for slot in self._slots.values())

    def takes(self, inputs: StepInputs) -> bool:
        """Tell whether a step can be computed here."""
        plain = not (inputs.adapted or inputs.embedded or inputs.encoded) and inputs.ancestors is None
        plain = plain and inputs.rotary is None
        if inputs.states is not None:  # what is kept of drafts, and replayed, goes through the host
            plain = plain and inputs.states.are_plain
        return self._capture is not None and plain and self._shape_of(inputs) is not None

    def shapes(self) -> Iterator[GraphShape]:
        """Yield the shapes of decodes and of mixed steps, the largest first: the smaller ones reuse its memory."""
        contexts = sorted(
            {padded_context(length, self._max_model_len) for length in (1, self._max_model_len)}
        )
        largest = (padded_size(self._tokens_max, _MIXED_SIZES) or _MIXED_SIZES[-1]) if self._tokens_max else 0
        for context in reversed(contexts):
            for tokens in reversed(_MIXED_SIZES):
                if tokens <= largest:
                    few = min(_FEW_SEQUENCES, self._rows_max)
                    for sequences in sorted({few, min(tokens, self._rows_max)}, reverse=True):
                        yield GraphShape(tokens, sequences, tokens, context)
            for size in reversed(_SIZES):
                if size <= self._rows_max:
                    yield GraphShape(size, size, 1, context)

    def compute(self, shape: GraphShape, *, captures: bool = False) -> Tensor:
        """Compute a step of no token, which writes to the spare block alone.

        Args:
            captures: capture the shape's graph too.

        Returns:
            Hidden states [shape.tokens, hidden_size].
        """
        sent = self._staging.send(self._nothing(shape).arrays(), self._slot(shape).memory)
        if captures and self._capture is not None:
            return self._computed(shape, sent)
        return self._run_of(shape, sent)()

    def run(self, inputs: StepInputs) -> Tensor:
        """Return hidden states [tokens, hidden_size], good until the next call."""
        shape = self._shape_of(inputs)
        assert shape is not None and self._capture is not None
        slot = self._slot(shape)
        sent = self._staging.send(self.pad(inputs, shape).arrays(), slot.memory)
        self._send_tables(inputs)
        hidden = slot.replay() if slot.replay is not None else self._computed(shape, sent)
        return hidden[: len(inputs.positions)]

    def _shape_of(self, inputs: StepInputs) -> GraphShape | None:
        """The least shape that holds a step; None if there is none."""
        tokens, sequences = len(inputs.positions), len(inputs.context_lengths)
        if sequences > self._rows_max:
            return None
        context = padded_context(inputs.max_context_length, self._max_model_len)
        if is_decode(inputs):
            size = padded_size(sequences)
            return None if size is None else GraphShape(size, size, 1, context)
        if inputs.verifying is not None and inputs.max_query_length <= _VERIFIED_MAX:
            length, size = 1 << (inputs.max_query_length - 1).bit_length(), padded_size(sequences)
            return None if size is None else GraphShape(length * size, size, length, context)
        padded = padded_size(tokens, _MIXED_SIZES)
        if padded is None or not self._tokens_max:
            return None
        few = sequences <= _FEW_SEQUENCES
        most = min(_FEW_SEQUENCES if few else padded, self._rows_max)
        return GraphShape(padded, most, padded, context)

    def _slot(self, shape: GraphShape) -> _Slot:
        if shape not in self._slots:
            size = packed_bytes(self._nothing(shape).arrays())
            memory = torch.empty(size, dtype=torch.uint8, device=self._last_drawn.device)
            self._slots[shape] = _Slot(memory)
        return self._slots[shape]

    def _computed(self, shape: GraphShape, sent: list[Tensor]) -> Tensor:
        """Compute a step whose inputs are where its graph is to read them, then capture the graph."""
        run = self._run_of(shape, sent)
        hidden = run().clone()
        assert self._capture is not None
        try:
            self._slots[shape].replay = self._capture(run)
        except Exception as error:
            # The step itself was computed above. What a capture may raise is torch's, Triton's or the driver's.
            reason = str(error).partition("\n")[0] or type(error).__name__
            log.warning("steps are computed without CUDA graphs: %s", reason)
            self._capture = None
        return hidden

    def _run_of(self, shape: GraphShape, sent: list[Tensor]) -> Callable[[], Tensor]:
        """Return what computes a step of a shape from its inputs."""
        token_ids, sources, positions, lengths, starts, *slots = sent

        def run() -> Tensor:
            batch = AttentionBatch.of_groups(
                [table[: shape.sequences] for table in self._tables],
                slots,
                query_starts=starts,
                context_lengths=lengths,
                positions=positions,
                max_query_length=shape.query_length,
                max_context_length=shape.context_length,
            )
            drawn = self._last_drawn[sources.clamp(min=0)]
            return self._forward(torch.where(sources == UNKNOWN, token_ids, drawn), positions, batch)

        return run

    def _nothing(self, shape: GraphShape) -> _Padded:
        """A step of no token."""
        token_ids, positions = (np.zeros(shape.tokens, np.int64) for _ in range(2))
        return _Padded(
            token_ids=token_ids,
            sources=np.full(shape.tokens, UNKNOWN, np.int64),
            positions=positions,
            lengths=np.ones(shape.sequences, np.int32),
            starts=np.zeros(shape.sequences + 1, np.int32),
            slots=[
                np.full(shape.tokens, self._spare_block * self._block_size, np.int64) for _ in self._tables
            ],
        )

    def pad(self, inputs: StepInputs, shape: GraphShape) -> _Padded:
        """Return a step's arrays at the size of a shape."""
        padded, tokens, sequences = self._nothing(shape), len(inputs.positions), len(inputs.context_lengths)
        padded.token_ids[:tokens] = inputs.token_ids
        padded.token_ids[inputs.unknown] = 0  # looked up before it is replaced
        padded.sources[inputs.unknown] = inputs.unknown_rows
        padded.positions[:tokens] = inputs.positions
        padded.lengths[:sequences] = inputs.context_lengths
        padded.starts[: sequences + 1] = inputs.query_starts
        padded.starts[sequences + 1 :] = tokens
        for ours, theirs in zip(padded.slots, inputs.slots, strict=True):
            ours[:tokens] = theirs
        return padded

    def _send_tables(self, inputs: StepInputs) -> None:
        _, rows, width = inputs.block_tables.shape
        for table, sent in zip(self._tables, self._staging.send(list(inputs.block_tables)), strict=True):
            table[:rows, :width] = sent
