"""Processors in vLLM's form, which follow the batch, behind the executor's own interface, which follows nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pageant.protocol.logits_processing import AddedRequest, BatchUpdate, LogitsProcessor
from pageant.protocol.sampling import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from pageant.actors.executor.batch.processors import ProcessedRow

__all__ = ["FollowingProcessor"]

TAIL = 256
"""Tokens that may be others than in the last step, at most: drafts that were not accepted."""


class FollowingProcessor:
    """Tells a processor of each step's rows as changes of a batch whose places are those rows.

    A request that stands at another place than in the last step is removed and added again, with the tokens that it
    has drawn so far, as vLLM does after a preemption. So a step's rows may be any, and any engine may go on.
    """

    def __init__(self, cls: type[LogitsProcessor], device: str) -> None:
        import torch

        self.name = cls.__name__
        self._processor = cls(Configuration(device), torch.device(device), False)
        self._validate = cls.validate_params
        self._places: list[_Place] = []

    def wants(self, params: SamplingParams) -> bool:
        """Return True: which requests it concerns is for the processor to know. Raise where it refuses one."""
        self._validate(params)
        return True

    def apply(self, logits: Tensor, rows: Sequence[ProcessedRow]) -> Tensor:
        """Return the processed logits of these rows, float32 [R, V]; may mutate those that are given."""
        try:
            self._processor.update_state(self._update(rows))
            return self._processor.apply(logits)  # type: ignore[no-any-return]
        except Exception:
            self._forget()
            raise

    def _update(self, rows: Sequence[ProcessedRow]) -> BatchUpdate | None:
        """The changes from the last step's places to these rows."""
        removed: list[int] = []
        added: list[AddedRequest] = []
        for place in range(max(len(rows), len(self._places))):
            here = self._places[place] if place < len(self._places) else None
            row = rows[place] if place < len(rows) else None
            if here is not None and row is not None and here.goes_on_with(row):
                continue
            if here is not None:
                removed.append(place)
            if row is not None:
                new = _Place(row)
                self._places[place : place + 1] = [new]
                added.append((place, row.params, new.prompt, new.output))
        del self._places[len(rows) :]
        return BatchUpdate(len(rows), removed, added, ()) if removed or added else None

    def _forget(self) -> None:
        """Take every place away, so that what failed halfway leaves no state behind."""
        removed = range(len(self._places))
        self._places = []
        with suppress(Exception):  # what it raised before is what its request is told
            self._processor.update_state(BatchUpdate(0, removed, (), ()))


class _Place:
    """A request at a place: its parameters, its prompt, and the list of its tokens that its processor holds."""

    def __init__(self, row: ProcessedRow) -> None:
        self._row = row.row
        self._params = row.params
        self.prompt: list[int] = row.prompt_token_ids.tolist()
        self.output: list[int] = row.output_token_ids.tolist()

    def goes_on_with(self, row: ProcessedRow) -> bool:
        """Return whether a row is this request, with as many tokens or more; take those."""
        known = len(self.output)
        if row.row != self._row or row.params is not self._params or len(row.output_token_ids) < known:
            return False
        if row.output_token_ids[max(0, known - TAIL) : known].tolist() != self.output[-TAIL:]:
            return False
        self.output += row.output_token_ids[known:].tolist()
        return True


class Configuration:
    """The engine's configuration, as far as processors are told of it."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"processors are told of no {name}; they have the device")
