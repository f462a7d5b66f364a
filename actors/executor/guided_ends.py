"""How recorded steps of guided rows end: from hidden states to tokens, by masks that come meanwhile.

What masks forbid need not be computed. Of rows whose masks allow tokens in few parts of the vocabulary, as they do
wherever a grammar knows what kind of thing comes next, only those parts of the head are gone through (`narrowing`):
of a model of 0.6 billion weights the head is a quarter of what a step reads. So the logits of rows that will need all
of them come first, going by their last masks, and meanwhile the others' masks may. If they have not, they are waited
for where that is expected to take less time than is spared. Then comes what is left; and before the draw those are
waited for that are still missing, for as long as that is worth it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from pageant.actors.executor.keeping import SOON_SECONDS, patience_by_late
from pageant.actors.executor.masks import GuidedStep, HeldMasks
from pageant.kernels.base import NeededLogits, SamplingTensors
from pageant.kernels.cpu import CpuKernels

__all__ = ["Awaiting", "GuidedEnd", "GuidedEnds", "Logits", "unheld"]

_MILLION = 1_000_000
_BILLION = 1_000_000_000
_LATEST = 0.3  # what the last step counts in an average
_FORGETTING = 0.98  # of lateness, with each step that does not wait: in the end one tries again
_SHARE_LEAST = 0.1  # of the logits, from which on it can be told how long all of them take


class Logits(Protocol):
    """See `Decoder.logits`."""

    def __call__(self, hidden: Tensor, needed: NeededLogits | None = None) -> Tensor: ...


class Awaiting(NamedTuple):
    """The logits [T, V] of a step whose masks had not come after so many seconds."""

    logits: Tensor
    waited: float


class _Recorded(NamedTuple):
    """What a recording leaves in memory when it is played. For `gates` and the others see `CpuKernels`."""

    logits: Tensor
    places: Tensor
    known: Tensor
    share: Tensor
    gates: tuple[Tensor, Tensor]


@dataclass
class GuidedEnd:
    """Of steps of one shape: where their masks are, and what is known by those before, in seconds."""

    held: HeldMasks | None = None
    recorded: _Recorded | None = None
    took: float = 0.0  # the last one, but for waiting
    head: float = 0.0  # that all logits take
    spared: float = 0.0  # of it, by masks like the last ones that come in time
    lateness: float = 0.0  # of masks, when the first logits are there

    @property
    def patience(self) -> float:
        """For how long masks are waited for before the rest of the logits."""
        return min(self.spared, SOON_SECONDS) if self.lateness < self.spared else 0.0

    def learn(self, recorded: _Recorded, took: float) -> tuple[bool, float]:
        """Takes in what a step that took so long has left. Returns whether it has drawn, and for how long it waited."""
        spared, began = recorded.known.tolist()
        (share,) = recorded.share.tolist()
        (knew, waited, first_done), (came, waited_more, done) = (gate.tolist() for gate in recorded.gates)
        if share >= _SHARE_LEAST * _MILLION:
            head = (done - began - waited) / _BILLION * _MILLION / share
            self.head += (head - self.head) * (_LATEST if self.head else 1)
        self.spared = self.head * spared / _MILLION
        if knew:
            late = waited
        elif waited_more:
            late = done + waited_more - first_done
        else:  # at some time in between
            late = max(waited, (done - first_done) // 2)
        if self.patience or late / _BILLION > self.lateness:
            self.lateness += (late / _BILLION - self.lateness) * _LATEST
        self.lateness *= _FORGETTING
        self.took = took - (waited + waited_more) / _BILLION
        return bool(came), (waited + waited_more) / _BILLION


class GuidedEnds:
    """Of all shapes, which read what they go by at the same places.

    Args:
        tokens_max: of a step.
    """

    def __init__(
        self, kernels: CpuKernels, logits: Logits, tokens_max: int, clock: Callable[[], float]
    ) -> None:
        self._kernels, self._logits, self._clock = kernels, logits, clock
        self._slots, self._positions = (torch.zeros(tokens_max, dtype=torch.int64) for _ in range(2))
        # Nanoseconds to wait before the rest of the logits and before the draw, by how many rows' masks are missing.
        self._patience = [torch.zeros(tokens_max + 1, dtype=torch.int64) for _ in range(2)]
        self._began = 0.0

    def write(self, end: GuidedEnd, guided: GuidedStep, rows: int) -> None:
        """Says what the masks are for that a step of so many rows goes by, whose recording is played next."""
        slots = self._slots.numpy()
        slots[:rows] = -1
        slots[guided.places] = guided.slots
        self._positions.numpy()[guided.places] = guided.positions
        for_rest, for_draw = (patience.numpy() for patience in self._patience)
        for_rest[: rows + 1] = _BILLION * end.patience
        for_draw[: rows + 1] = _BILLION * np.minimum(patience_by_late(rows, end.took), SOON_SECONDS)
        self._began = self._clock()

    def tokens(self, end: GuidedEnd, hidden: Tensor, params: SamplingTensors) -> Tensor:
        """The tokens [T] that are drawn after hidden states [T, N], while that is recorded."""
        assert end.held is not None, "it is known where masks are"
        kernels = self._kernels
        bits, positions = (torch.from_numpy(array) for array in end.held)
        slots = self._slots[: len(hidden)]
        narrowed = kernels.narrow(hidden, slots, bits)
        logits = self._logits(narrowed.hidden, narrowed.needed)
        before_rest = kernels.gate(positions, slots, self._positions, self._patience[0], ends=False)
        rest = kernels.narrow_rest(hidden, slots, bits, before_rest, narrowed)
        self._logits(narrowed.hidden, rest.needed._replace(into=logits))
        before_draw = kernels.gate(positions, slots, self._positions, self._patience[1])
        end.recorded = _Recorded(
            unheld(logits), rest.places, narrowed.known, rest.share, (before_rest, before_draw)
        )
        return kernels.sample_by_table(logits, params, slots, bits, rest.places)

    def awaiting(self, end: GuidedEnd) -> Awaiting | None:
        """What a step that has just been played waits for, if it has drawn nothing."""
        assert end.recorded is not None, "it has been recorded"
        has_drawn, waited = end.learn(end.recorded, self._clock() - self._began)
        return None if has_drawn else Awaiting(end.recorded.logits[end.recorded.places], waited)


def unheld(logits: Tensor) -> Tensor:
    """The same memory, which others may use: logits are many, and each shape's would stay for good. What recordings use
    is there as long as their kernels."""
    numbers = (ctypes.c_float * logits.numel()).from_address(logits.data_ptr())
    return torch.frombuffer(numbers, dtype=torch.float32).view(logits.shape)
