"""Logits tails of recorded steps of guided rows: from hidden states to tokens, by masks that come meanwhile.

What masks forbid need not be computed. Of rows whose masks allow tokens in few parts of the vocabulary, as they do
wherever a grammar knows what kind of thing comes next, only those parts of the head are gone through (`narrowing`).
The head of a model of 0.6 billion weights is a quarter of what a step reads. Masks that are not there when the head
begins are waited for where that is expected to take less time than is spared. Then the logits of rows that will need
all of them, going by their last masks, come first, and then what the masks leave. Else all is computed at once. Before
the draw, masks that are still missing are waited for, for as long as that is worth it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from pageant.actors.executor.guided.keeping import SOON_SECONDS, patience_by_late
from pageant.actors.executor.guided.masks import GuidedStep, HeldMasks
from pageant.kernels.base import UNMASKED, VOID, NeededLogits, SamplingTensors
from pageant.kernels.recording import RecordingKernels

__all__ = ["Awaiting", "GuidedEnds", "Logits", "MaskTiming", "Played", "ShapeEnd", "unheld"]

_MILLION = 1_000_000
_BILLION = 1_000_000_000
_LATEST = 0.3  # what the last step counts in an average
_FORGETTING = 0.996  # of lateness, with each step of which it is not known: in the end one tries again


class Logits(Protocol):
    """See `Decoder.logits`."""

    def __call__(self, hidden: Tensor, needed: NeededLogits | None = None) -> Tensor: ...


class Awaiting(NamedTuple):
    """The logits [T, V] of a step, good until the next, whose masks had not come after so many seconds."""

    logits: Tensor
    waited: float


class Played(NamedTuple):
    """Times of a step's end, in seconds since the head began: until the logits were there that need no masks,
    until all were, and for how long masks were waited for before the others and before the draw.

    `came_before` is whether all masks had come by the beginning; `narrow` is how many rows were not computed whole, and
    `share` is what the last masks would spare of all logits.
    """

    first: float
    done: float
    waited: float
    waited_more: float
    came_before: bool
    came: bool
    narrow: int
    share: float


@dataclass
class MaskTiming:
    """Times of earlier steps of one shape, in seconds."""

    took: float = 0.0  # the last one, but for waiting
    whole: float = 0.0  # that the head takes if all of it is computed, and if what masks leave is
    narrowed: float | None = None
    first: float = 0.0  # what of the latter needs no masks
    lateness: float = 0.0  # of masks, since the head began
    share: float = 0.0  # of the logits, that the last masks would spare

    @property
    def patience(self) -> float:
        """Return for how long masks are waited for, when what needs none is there."""
        narrowed = self.whole * (1 - self.share) if self.narrowed is None else self.narrowed
        most = min(self.whole - narrowed, SOON_SECONDS)
        return most if self.lateness - self.first < most else 0.0

    def learn(self, played: Played, took: float) -> None:
        """Takes in a step that took so long in all."""
        self.took, self.share = took - played.waited - played.waited_more, played.share
        head = played.done - played.waited
        if played.narrow:
            self.narrowed = head if self.narrowed is None else _averaged(self.narrowed, head)
            self.first = _averaged(self.first, played.first)
        else:
            self.whole = _averaged(self.whole, head) if self.whole else head
        if played.came_before:
            self.lateness = _averaged(self.lateness, 0.0)
        elif played.waited_more:
            self.lateness = _averaged(self.lateness, played.done + played.waited_more)
        elif played.waited and played.narrow:
            self.lateness = _averaged(self.lateness, played.first + played.waited)
        elif played.waited:  # in vain, but they came before the draw
            self.lateness = _averaged(self.lateness, (played.first + played.waited + played.done) / 2)
        else:  # at some time meanwhile
            self.lateness = _FORGETTING * min(self.lateness, played.done)


def _averaged(average: float, latest: float) -> float:
    return average + (latest - average) * _LATEST


class _Recorded(NamedTuple):
    """Memory that a recording leaves when it is played. For all but the logits, see `RecordingKernels`."""

    logits: Tensor
    places: Tensor
    came_before: Tensor
    began: Tensor
    spared: Tensor
    narrow: Tensor
    before_rest: Tensor
    before_draw: Tensor

    def played(self) -> Played:
        """The last time."""
        (began,), (narrow,), (spared,) = (part.tolist() for part in (self.began, self.narrow, self.spared))
        (_, waited, first), (came, waited_more, done) = (
            gate.tolist() for gate in (self.before_rest, self.before_draw)
        )
        return Played(
            first=(first - began) / _BILLION,
            done=(done - began) / _BILLION,
            waited=waited / _BILLION,
            waited_more=waited_more / _BILLION,
            came_before=bool(self.came_before[0]),
            came=bool(came),
            narrow=narrow,
            share=spared / _MILLION,
        )


@dataclass
class ShapeEnd:
    """Logits tail of steps of one shape: where their masks are, what was recorded of that, and their known times."""

    held: HeldMasks | None = None
    recorded: _Recorded | None = None
    timing: MaskTiming = field(default_factory=MaskTiming)


class GuidedEnds:
    """Logits tails under masks of all shapes, whose static inputs are at the same places.

    Args:
        tokens_max: of a step.
    """

    def __init__(
        self, kernels: RecordingKernels, logits: Logits, tokens_max: int, clock: Callable[[], float]
    ) -> None:
        self._kernels, self._logits, self._clock = kernels, logits, clock
        self._slots, self._positions = (torch.zeros(tokens_max, dtype=torch.int64) for _ in range(2))
        # Nanoseconds to wait, by how many rows' masks are missing.
        self._for_rest, self._for_draw = (torch.zeros(tokens_max + 1, dtype=torch.int64) for _ in range(2))
        self._began = 0.0

    def write(self, end: ShapeEnd, guided: GuidedStep, rows: int) -> None:
        """Says what the masks are for that a step of so many rows goes by, whose recording is played next."""
        slots = self._slots.numpy()
        slots[:rows] = UNMASKED
        slots[guided.places] = guided.slots
        if guided.void:
            slots[list(guided.void)] = VOID
        self._positions.numpy()[guided.places] = guided.positions
        for_draw = np.minimum(patience_by_late(rows, end.timing.took), SOON_SECONDS)
        self._for_draw.numpy()[: rows + 1] = _BILLION * for_draw
        self._for_rest.numpy()[: rows + 1] = _BILLION * np.minimum(for_draw, end.timing.patience)
        self._began = self._clock()

    def tokens(self, end: ShapeEnd, hidden: Tensor, params: SamplingTensors) -> Tensor:
        """Return the tokens, int64 [T], drawn after hidden states [T, N] in the model's dtype, while it is recorded."""
        assert end.held is not None, "it is known where masks are"
        kernels = self._kernels
        bits, positions = (torch.from_numpy(array) for array in end.held)
        slots = self._slots[: len(hidden)]
        masks = slots, bits, positions, self._positions
        coming = positions, slots, self._positions
        narrowed = kernels.narrow(hidden, *masks, self._for_rest)
        logits = self._logits(narrowed.hidden, narrowed.needed)
        before_rest = kernels.gate(*coming, narrowed.patience, ends=False)
        rest = kernels.narrow_rest(hidden, *masks, narrowed)
        self._logits(narrowed.hidden, rest.needed._replace(into=logits))
        before_draw = kernels.gate(*coming, self._for_draw)
        end.recorded = _Recorded(
            *(unheld(logits), rest.places, narrowed.came, narrowed.began, narrowed.spared),
            *(rest.narrow, before_rest, before_draw),
        )
        return kernels.sample_by_table(logits, params, slots, bits, rest.places)

    def awaiting(self, end: ShapeEnd) -> Awaiting | None:
        """Return what a step that has just been played waits for, if it has drawn nothing."""
        assert end.recorded is not None, "it has been recorded"
        played = end.recorded.played()
        end.timing.learn(played, self._clock() - self._began)
        if played.came:
            return None
        logits, places = end.recorded.logits, end.recorded.places
        if not torch.equal(places, torch.arange(len(places))):
            logits = logits[places]
        return Awaiting(logits, played.waited + played.waited_more)


def unheld(logits: Tensor) -> Tensor:
    """Return float32 logits [R, vocab_size] in the same memory, without holding it: the kernels of recordings do.

    Logits are many, and each shape's would stay for good.
    """
    numbers = (ctypes.c_float * logits.numel()).from_address(logits.data_ptr())
    return torch.frombuffer(numbers, dtype=torch.float32).view(logits.shape)
