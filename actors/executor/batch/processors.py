"""Logits processors of your own, named in YAML; each sees all rows of a step that want it, at once.

actors:
  executor: {options: {logits_processors: ["my_lab.processors:Banned"]}}

They come after all that `shaping` does, in their order in YAML. One that raises for a batch is tried again
row by row, so that only the requests for which it raises end, with an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.following_processors import FollowingProcessor
from pageant.actors.executor.device_errors import is_device_error
from pageant.actors.runtime.classes import load_object
from pageant.protocol.arrays import int32
from pageant.protocol.hearing import SpeechRules
from pageant.protocol.logits_processing import LogitsProcessor as FollowingLogitsProcessor
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence

if TYPE_CHECKING:
    from torch import Tensor

Int32 = npt.NDArray[np.int32]


_NOTHING_AHEAD: dict[int, list[int]] = {}


@dataclass(frozen=True)
class ProcessedRow:
    """A row that is about to draw: its parameters, and its tokens as views that are good during `apply`."""

    params: SamplingParams
    prompt_token_ids: Int32
    output_token_ids: Int32
    row: int = 0
    """Of the batch: a request keeps it from step to step until it is preempted."""
    speech: SpeechRules | None = None
    """Rules of a text that is heard."""


class LogitsProcessor(Protocol):
    """Made once, without arguments. Classes in vLLM's form, of `protocol.logits_processing`, are taken, too."""

    def wants(self, params: SamplingParams) -> bool:
        """Tell whether it has anything to do for a request; see `SamplingParams.extra_args`."""

    def apply(self, logits: Tensor, rows: Sequence[ProcessedRow]) -> Tensor:
        """Logits [R, V] in float32, of the rows that want it, to logits of that shape. May mutate them."""


@dataclass(frozen=True)
class Processing:
    """One step's: for each processor, its rows by their places among the drawing ones."""

    work: list[tuple[LogitsProcessor, list[int], list[ProcessedRow]]]
    failed: dict[int, str]


class Processors:
    """All processors, and the rows of the batch that want any."""

    def __init__(self, names: Sequence[str] = (), device: str = "cpu") -> None:
        self._processors: list[LogitsProcessor] = [_made(name, device) for name in names]
        self._speech: LogitsProcessor | None = None
        self._rows: dict[int, tuple[NewSequence, list[LogitsProcessor] | str]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """Forgets every row."""
        self._rows.clear()

    def free(self, rows: Iterable[int]) -> None:
        """Forgets some rows."""
        if self._rows:
            for row in rows:
                self._rows.pop(int(row), None)

    def add(self, sequence: NewSequence) -> None:
        """Takes a new sequence, or a resumed one, in place of what was in its row."""
        self._rows.pop(sequence.row, None)
        wanted: list[LogitsProcessor] | str = [] if sequence.speech is None else [self._of_speech()]
        for processor in self._processors:
            try:
                wants = processor is not self._speech and processor.wants(sequence.params)
                if wants and isinstance(wanted, list):
                    wanted.append(processor)
            except Exception as error:
                wanted = _message(processor, error)
        if wanted:
            self._rows[sequence.row] = sequence, wanted

    def _of_speech(self) -> LogitsProcessor:
        """Return the processor of texts that are heard, the last of all."""
        if self._speech is None:
            from pageant.actors.executor.batch.speech import SpeechProcessor  # it imports torch

            self._speech = SpeechProcessor()
            self._processors.append(self._speech)
        return self._speech

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    def of_step(
        self,
        rows: Int32,
        positions: npt.NDArray[np.int64],
        token_ids: Int32,
        ahead: Mapping[int, Sequence[int]] = _NOTHING_AHEAD,
    ) -> Processing | None:
        """Return what is to be done for these rows, which draw the tokens at these positions; all before is known.

        Args:
            rows: int32 [D].
            positions: int64 [D].
            token_ids: the batch's, int32 [rows, max_model_len + 1].
            ahead: by place, the drafts before it, if there are any: the last tokens that it follows.
        """
        if not self._rows:
            return None
        processing = Processing([(processor, [], []) for processor in self._processors], {})
        for place, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            sequence, wanted = self._rows.get(row, (None, []))
            if sequence is None or isinstance(wanted, str):
                processing.failed.update({place: wanted} if isinstance(wanted, str) else {})
                continue
            drafts, num_prompt = ahead.get(place, ()), sequence.num_prompt_tokens
            output = token_ids[row, num_prompt : position - len(drafts)]
            if drafts:
                output = np.concatenate([output, int32(drafts)])
            view = ProcessedRow(sequence.params, token_ids[row, :num_prompt], output, row, sequence.speech)
            for processor, places, views in processing.work:
                if processor in wanted:
                    places.append(place)
                    views.append(view)
        return processing


def _made(name: str, device: str) -> LogitsProcessor:
    found: Any = load_object(name, "actors.executor.options.logits_processors")
    if isinstance(found, type) and issubclass(found, FollowingLogitsProcessor):
        return FollowingProcessor(found, device)
    made: LogitsProcessor = found()
    return made


def process_logits(logits: Tensor, processing: Processing | None) -> dict[int, str]:
    """Apply the processors of a step. Return why some rows failed, by their places.

    logits: float32 [D, vocab_size], mutated. Raises errors of the device.
    """
    if processing is None:
        return {}
    failed = dict(processing.failed)
    for processor, places, rows in processing.work:
        try:
            if places:
                logits[places] = _applied(processor, logits[places], rows)
        except Exception as error:
            if is_device_error(error):
                raise  # the rows of no request are at fault, and every later call fails too
            for place, row in zip(places, rows, strict=True):
                try:
                    logits[[place]] = _applied(processor, logits[[place]], [row])
                except Exception as of_row:
                    failed[place] = _message(processor, of_row)
    return failed


def _applied(processor: LogitsProcessor, logits: Tensor, rows: list[ProcessedRow]) -> Tensor:
    """Apply processors to a copy, so that what raises halfway leaves nothing behind."""
    shape = logits.shape
    found = processor.apply(logits, rows)
    if found.shape != shape:
        raise ValueError(f"apply returned logits of shape {tuple(found.shape)}; expected {tuple(shape)}")
    return found


def _message(processor: LogitsProcessor, error: Exception) -> str:
    name = getattr(processor, "name", type(processor).__name__)
    return f"the logits processor {name} failed: {type(error).__name__}: {error}"
