"""Log-probabilities of the tokens that a step draws, and of the prompt's tokens that it computes.

They are of the logits as the model gives them. Only the rows that ask cost anything: a drawing row's logits are
copied before they are shaped, and a prompt's are computed a few rows at a time, since those of a whole chunk
would be as large as the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pageant.protocol.logprobs import Logprobs
from pageant.protocol.stepping import NewSequence, StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pageant.kernels.base import Kernels

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

PROMPT_LOGITS_MAX = 64  # rows at a time


@dataclass(frozen=True)
class Scored:
    """Places of a step whose log-probabilities are asked for: N of them, each with its `counts[i]` likeliest
    tokens, or with all of them if that is negative."""

    rows: Int32  # [N], in the message: of the drawing rows, or of the plan's
    places: Int64  # [N], of the D drawing rows, or of the step's T tokens
    counts: Int32  # [N]
    token_ids: Int64  # [N], whose they are; empty for those that are drawn

    def part(self, places: Int64) -> tuple[Int64, Scored]:
        """Which of the N are at some of the drawing rows, and those alone, the rows being 0, 1, ... by now."""
        kept = np.flatnonzero(np.isin(self.places, places))
        new = np.searchsorted(places, self.places[kept])
        return kept, Scored(new.astype(np.int32), new, self.counts[kept], self.token_ids)


@dataclass(frozen=True)
class Scores:
    """One step's."""

    drawn: Scored | None
    prompt: Scored | None


class Scorers:
    """The rows of the batch that ask."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int | None, int | None, int]] = {}  # counts, and tokens of the prompt

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
        params = sequence.params
        if params.logprobs is not None or params.prompt_logprobs is not None:
            self._rows[sequence.row] = params.logprobs, params.prompt_logprobs, sequence.num_prompt_tokens

    def of_step(self, plan: StepPlan, token_ids: Int32) -> Scores | None:
        """What a plan's rows ask for. `token_ids` are the batch's, by row."""
        if not self._rows:
            return None
        drawn: list[tuple[int, int]] = []
        prompts: list[tuple[int, int, int, Int32]] = []
        drafts = plan.draft_counts if len(plan.draft_ids) else np.zeros(len(plan.rows), np.int32)
        columns = (plan.rows, plan.starts, plan.num_tokens, (1 + drafts) * plan.draws, drafts)
        draw = token = 0
        for index, (row, start, length, draws, num_drafts) in enumerate(
            zip(*map(_list, columns), strict=True)
        ):
            count, prompt_count, num_prompt = self._rows.get(row, (None, None, 0))
            if count is not None:
                drawn.extend((draw + ahead, count) for ahead in range(draws))
            last = min(start + length, num_prompt - 1)  # the last token is followed by none of the prompt
            if prompt_count is not None and start < last:
                prompts.append((index, token, prompt_count, token_ids[row, start + 1 : last + 1]))
            draw, token = draw + draws, token + length + num_drafts
        return Scores(_of_drawn(drawn), _of_prompts(prompts)) if drawn or prompts else None


def _list(column: npt.NDArray[np.int32]) -> list[int]:
    values: list[int] = column.tolist()
    return values


def _of_drawn(drawn: list[tuple[int, int]]) -> Scored | None:
    if not drawn:
        return None
    places, counts = zip(*drawn, strict=True)
    return Scored(
        np.array(places, np.int32),
        np.array(places, np.int64),
        np.array(counts, np.int32),
        np.empty(0, np.int64),
    )


def _of_prompts(prompts: list[tuple[int, int, int, Int32]]) -> Scored | None:
    if not prompts:
        return None
    lengths = [len(token_ids) for _, _, _, token_ids in prompts]
    return Scored(
        rows=np.repeat(np.array([index for index, _, _, _ in prompts], np.int32), lengths),
        places=np.concatenate([np.arange(first, first + len(ids)) for _, first, _, ids in prompts]),
        counts=np.repeat(np.array([count for _, _, count, _ in prompts], np.int32), lengths),
        token_ids=np.concatenate([ids for _, _, _, ids in prompts]).astype(np.int64),
    )


class Scoring:
    """What was found for some places of a step, perhaps still on its way from the device."""

    def __init__(self, scored: Scored) -> None:
        self._scored = scored
        self._found: list[tuple[Tensor, ...]] = []  # chosen, ranks, top_tokens, top; rows after one another
        self._token_ids: list[Tensor] = []

    def add(self, kernels: Kernels, logits: Tensor, token_ids: Tensor) -> None:
        """The next rows: logits [R, V] and their tokens [R]. Begins to bring them to the host."""
        done = sum(len(tokens) for tokens in self._token_ids)
        counts = _bounded(self._scored.counts[done : done + len(token_ids)], logits.shape[-1])
        found = kernels.top_logprobs(logits, token_ids, int(counts.max()))
        self._found.append(tuple(_to_host(tensor) for tensor in found))
        self._token_ids.append(_to_host(token_ids))
        self._vocab_size = logits.shape[-1]

    def columns(self) -> Logprobs:
        """All of it; the device has been waited for."""
        counts = _bounded(self._scored.counts, self._vocab_size)
        ids, top, first = [], [], 0
        for _, _, top_tokens, top_logprobs in self._found:
            kept = np.arange(top_tokens.shape[1]) < counts[first : first + len(top_tokens), None]
            ids.append(top_tokens.numpy()[kept])
            top.append(top_logprobs.numpy()[kept])
            first += len(top_tokens)
        return Logprobs(
            rows=self._scored.rows,
            token_ids=np.concatenate([tokens.numpy() for tokens in self._token_ids]).astype(np.int32),
            logprobs=np.concatenate([found[0].numpy() for found in self._found]),
            ranks=np.concatenate([found[1].numpy() for found in self._found]),
            counts=counts,
            top_ids=np.concatenate(ids),
            top=np.concatenate(top),
        )


def score_prompts(
    scored: Scored, kernels: Kernels, logits_of: Callable[[Tensor], Tensor], hidden: Tensor
) -> Scoring:
    """The log-probabilities of prompts' tokens, given the step's hidden states [T, N]."""
    from pageant.actors.executor.on_device import to_device

    scoring = Scoring(scored)
    for first in range(0, len(scored.places), PROMPT_LOGITS_MAX):
        some = slice(first, first + PROMPT_LOGITS_MAX)
        places, token_ids = (
            to_device(array[some], hidden.device) for array in (scored.places, scored.token_ids)
        )
        scoring.add(kernels, logits_of(hidden[places]), token_ids)
    return scoring


def _bounded(counts: Int32, vocab_size: int) -> Int32:
    return np.where(counts < 0, vocab_size, np.minimum(counts, vocab_size)).astype(np.int32)


def _to_host(tensor: Tensor) -> Tensor:
    import torch

    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
