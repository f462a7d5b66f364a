"""Decode steps as CUDA graphs: hundreds of kernels that are launched at once.

A graph is bound to shapes and addresses, so a step is padded to the next of a few batch sizes, and its inputs are
copied to where the graph reads them. What is too much is a row of one token that attends to itself in a spare
block. Attention launches as many programs as the longest context can need, so there is a graph for each range of
lengths, too: short contexts do not pay for `max_model_len`. A graph is captured when a step first needs it, after
that step was computed without: nothing is captured at start. All share the memory of what they compute between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pageant.actors.executor.batch.inputs import UNKNOWN, StepInputs
from pageant.actors.executor.runners.staging import Staging
from pageant.kernels.base import AttentionBatch

__all__ = ["Capture", "CudaCapture", "DecodeGraphs", "is_decode", "padded_context", "padded_size"]

log = logging.getLogger("pageant.executor")

_SIZES = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
_CONTEXT_MIN = 1024
_CONTEXT_STEP = 4

Forward = Callable[[Tensor, Tensor, AttentionBatch], Tensor]


def is_decode(inputs: StepInputs) -> bool:
    """Whether each of the step's sequences has one token."""
    return inputs.max_query_length == 1 and len(inputs.positions) == len(inputs.context_lengths)


def padded_size(rows: int) -> int | None:
    """The least batch size of a graph that holds so many rows."""
    return next((size for size in _SIZES if size >= rows), None)


def padded_context(longest: int, max_model_len: int) -> int:
    """The upper end of the range of lengths that the longest context is in."""
    reach = _CONTEXT_MIN
    while reach < longest:
        reach *= _CONTEXT_STEP
    return min(reach, max_model_len)


class Capture(Protocol):
    """Makes what was called once into something that can be played again."""

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a function that does what `run` does, to the same memory, and returns the same tensor."""


class CudaCapture:
    """As CUDA graphs, which share a pool of memory: never two of them run at once."""

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
    """Where a graph reads its inputs, and the graph."""

    memory: Tensor
    replay: Callable[[], Tensor] | None = None


class DecodeGraphs:
    """Computes the hidden states of decode steps.

    Args:
        forward: of token ids, positions and a batch; it must not wait for the device.
        last_drawn: int64 [rows of the batch], the token that each drew last.
        spare_block: of the KV cache, that belongs to no sequence.
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
    ) -> None:
        self._forward = forward
        self._capture: Capture | None = capture
        self._staging = staging
        self._last_drawn = last_drawn
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._spare_block = spare_block
        self._rows_max = padded_size(max_num_seqs) or max(_SIZES)
        width = -(-max_model_len // block_size)
        device = last_drawn.device
        # One by one, so that each begins where kernels are compiled for.
        self._tables = [
            torch.full((self._rows_max, width), spare_block, dtype=torch.int32, device=device)
            for _ in range(num_groups)
        ]
        self._starts = torch.arange(self._rows_max + 1, dtype=torch.int32, device=device)
        self._slots: dict[tuple[int, int], _Slot] = {}

    @property
    def num_captured(self) -> int:
        """How many graphs there are."""
        return sum(slot.replay is not None for slot in self._slots.values())

    def takes(self, inputs: StepInputs) -> bool:
        """Whether a step can be computed here."""
        fits = is_decode(inputs) and len(inputs.positions) <= self._rows_max
        return self._capture is not None and fits and not (inputs.adapted or inputs.embedded)

    def run(self, inputs: StepInputs) -> Tensor:
        """Return hidden states [rows, hidden_size], good until the next call."""
        rows = len(inputs.positions)
        size = padded_size(rows)
        assert size is not None and self._capture is not None
        context = padded_context(inputs.max_context_length, self._max_model_len)
        arrays = self.pad(inputs, size)
        slot = self._slots.get((size, context))
        if slot is None:
            memory = torch.empty(
                size * (32 + 8 * len(self._tables)) + 16 * len(self._tables) + 256,
                dtype=torch.uint8,
                device=self._last_drawn.device,
            )
            slot = self._slots[size, context] = _Slot(memory)
        token_ids, sources, positions, lengths, *slots = self._staging.send(arrays, slot.memory)
        self._send_tables(inputs, size)
        if slot.replay is not None:
            return slot.replay()[:rows]

        def run() -> Tensor:
            batch = AttentionBatch.of_groups(
                [table[:size] for table in self._tables],
                slots,
                query_starts=self._starts[: size + 1],
                context_lengths=lengths,
                positions=positions,
                max_query_length=1,
                max_context_length=context,
            )
            drawn = self._last_drawn[sources.clamp(min=0)]
            return self._forward(torch.where(sources == UNKNOWN, token_ids, drawn), positions, batch)

        hidden = run().clone()
        try:
            slot.replay = self._capture(run)
        except Exception as error:
            # The step itself was computed above. What a capture may raise is torch's, Triton's or the driver's.
            reason = str(error).partition("\n")[0] or type(error).__name__
            log.warning("decode steps are computed without CUDA graphs: %s", reason)
            self._capture = None
        return hidden[:rows]

    def pad(self, inputs: StepInputs, size: int) -> list[np.ndarray]:
        """Token ids, the rows whose last drawn tokens they are instead (or UNKNOWN), positions, context lengths, and
        the slots in each group of layers, of `size` rows."""
        rows = len(inputs.positions)
        token_ids, sources, positions = (np.zeros(size, np.int64) for _ in range(3))
        slots = np.full((len(inputs.slots), size), self._spare_block * self._block_size)
        lengths = np.ones(size, np.int32)
        token_ids[:rows] = inputs.token_ids
        token_ids[inputs.unknown] = 0  # looked up before it is replaced
        sources[:] = UNKNOWN
        sources[inputs.unknown] = inputs.unknown_rows
        positions[:rows] = inputs.positions
        slots[:, :rows] = inputs.slots
        lengths[:rows] = inputs.context_lengths
        return [token_ids, sources, positions, lengths, *slots]

    def _send_tables(self, inputs: StepInputs, size: int) -> None:
        _, rows, width = inputs.block_tables.shape
        for table, sent in zip(self._tables, self._staging.send(list(inputs.block_tables)), strict=True):
            table[:rows, :width] = sent
            table[rows:size, 0] = self._spare_block
