"""Logits processors in vLLM's form: classes that follow a batch of requests and change the rows of its logits.

A user derives from these; the executor tells them of changes of the batch and applies them. Its own interface,
`pageant.actors.executor.batch.processors.LogitsProcessor`, sees all of a row's tokens and follows nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

from pageant.protocol.sampling import SamplingParams

T = TypeVar("T")
Logits = Any
"""A torch tensor; this package knows no torch."""


class MoveDirectionality(Enum):
    """Whether the request at a move's second place goes to its first."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


RemovedRequest = int
AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]
"""A place, the request's parameters, its prompt's tokens, and the list that its drawn tokens are appended to."""
MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True)
class BatchUpdate:
    """Changes of a batch since the last step: removals first, then additions, then moves."""

    batch_size: int
    removed: Sequence[RemovedRequest]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """Changes the logits of a batch before tokens are drawn; row `i` is of the request at place `i`."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError for a request's parameters that this processor cannot work with."""
        return None

    @abstractmethod
    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        """Take the engine's configuration and the torch device of the logits."""

    @abstractmethod
    def apply(self, logits: Logits) -> Logits:
        """Return logits of the same shape, float32 [batch_size, vocab_size]; may mutate them."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether the likeliest token is always the same as without it. Here it is applied either way."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Take changes of the batch; None where there are none."""


RequestLogitsProcessor = (
    Callable[[list[int], Logits], Logits] | Callable[[list[int], list[int], Logits], Logits]
)
"""Of drawn tokens, or of prompt and drawn tokens, and a row of logits to such a row."""


def process_dict_updates(
    entries: dict[int, T],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], T | None],
) -> bool:
    """Bring a mapping from places to states up to date. Return whether it changed.

    Args:
        new_state: makes the state of an added request; None where the processor has nothing to do for it.
    """
    if batch_update is None:
        return False
    before = dict(entries)
    for place in batch_update.removed:
        entries.pop(place, None)
    for place, params, prompt, output in batch_update.added:
        entries.pop(place, None)
        state = new_state(params, prompt, output)
        if state is not None:
            entries[place] = state
    for first, second, direction in batch_update.moved:
        moved, other = entries.pop(first, None), entries.pop(second, None)
        if moved is not None:
            entries[second] = moved
        if other is not None and direction is MoveDirectionality.SWAP:
            entries[first] = other
    return entries != before


class AdapterLogitsProcessor(LogitsProcessor):
    """Applies to each request a processor of its own, which sees one row."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._of_places: dict[int, Callable[[Logits], Logits]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """Return the processor of a new request; None where it has none."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Make the processors of requests that were added, and follow those that are there."""
        process_dict_updates(self._of_places, batch_update, self._bound)

    def _bound(
        self, params: SamplingParams, prompt: list[int] | None, output: list[int]
    ) -> Callable[[Logits], Logits] | None:
        processor: Any = self.new_req_logits_processor(params)
        if processor is None:
            return None
        import inspect

        if len(inspect.signature(processor).parameters) == 3:
            return lambda logits: processor(prompt or [], output, logits)
        return lambda logits: processor(output, logits)

    def apply(self, logits: Logits) -> Logits:
        """Apply each request's processor to its row."""
        for place, processor in self._of_places.items():
            logits[place] = processor(logits[place])
        return logits
