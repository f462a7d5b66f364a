"""Log-probabilities of the tokens that a step draws, and of the prompt's tokens that it computes.

They are of the logits as the model gives them. Only the rows that ask cost anything. A drawing row's logits are copied
before they are shaped. A prompt's are computed a few rows at a time, since those of a whole chunk would be as large as
the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import int64
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.stepping import NewSequence, StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pageant.kernels.base import Kernels

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

PROMPT_LOGITS_MAX = 64  # rows at a time


@dataclass(frozen=True)
class Scored:
    """Places of a step whose log-probabilities are asked for: N of them, each with its `counts[i]` likeliest
    tokens, or with all of them if that is negative. Some have tokens of their own instead, `listed` by their index."""

    rows: Int32  # [N], in the message: of the drawing rows, or of the plan's
    places: Int64  # [N], of the D drawing rows, or of the step's T tokens
    counts: Int32  # [N]
    token_ids: Int64  # [N], whose they are; empty for those that are drawn
    listed: Mapping[int, Int64] = field(default_factory=dict)

    def part(self, places: Int64) -> tuple[Int64, Scored]:
        """Return which of the N are at some of the drawing rows, and those alone, the rows being 0, 1, ... by now."""
        kept = np.flatnonzero(np.isin(self.places, places))
        new = np.searchsorted(places, self.places[kept])
        listed = {at: self.listed[one] for at, one in enumerate(kept.tolist()) if one in self.listed}
        return kept, Scored(new.astype(np.int32), new, self.counts[kept], self.token_ids, listed)


@dataclass(frozen=True)
class Scores:
    """One step's."""

    drawn: Scored | None
    prompt: Scored | None


class Scorers:
    """The rows of the batch that ask."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int | None, int | None, int]] = {}  # counts, and tokens of the prompt
        self._listed: dict[int, Int64] = {}  # the tokens of rows that name them

    def clear(self) -> None:
        """Forgets every row."""
        self._rows.clear()
        self._listed.clear()

    def free(self, rows: Iterable[int]) -> None:
        """Forgets some rows."""
        if self._rows:
            for row in rows:
                self._rows.pop(int(row), None)
                self._listed.pop(int(row), None)

    def add(self, sequence: NewSequence) -> None:
        """Takes a new sequence, or a resumed one, in place of what was in its row."""
        self.free((sequence.row,))
        params = sequence.params
        if params.logprob_token_ids is not None:
            self._listed[sequence.row] = int64(params.logprob_token_ids)
        if params.logprobs is not None or params.prompt_logprobs is not None:
            self._rows[sequence.row] = params.logprobs, params.prompt_logprobs, sequence.num_prompt_tokens

    def of_step(self, plan: StepPlan, token_ids: Int32) -> Scores | None:
        """Return what a plan's rows ask for. `token_ids` are the batch's, by row."""
        if not self._rows:
            return None
        drawn: list[tuple[int, int]] = []
        listed: dict[int, Int64] = {}
        prompts: list[tuple[int, int, int, Int32]] = []
        drafts = plan.draft_counts if len(plan.draft_ids) else np.zeros(len(plan.rows), np.int32)
        columns = (plan.rows, plan.starts, plan.num_tokens, (1 + drafts) * plan.draws, drafts)
        draw = token = 0
        for index, (row, start, length, draws, num_drafts) in enumerate(
            zip(*map(_list, columns), strict=True)
        ):
            count, prompt_count, num_prompt = self._rows.get(row, (None, None, 0))
            if count is not None:
                if (own := self._listed.get(row)) is not None:
                    count = 0
                    listed |= dict.fromkeys(range(len(drawn), len(drawn) + draws), own)
                drawn.extend((draw + ahead, count) for ahead in range(draws))
            last = min(start + length, num_prompt - 1)  # the last token is followed by none of the prompt
            if prompt_count is not None and start < last:
                prompts.append((index, token, prompt_count, token_ids[row, start + 1 : last + 1]))
            draw, token = draw + draws, token + length + num_drafts
        return Scores(_of_drawn(drawn, listed), _of_prompts(prompts)) if drawn or prompts else None


def _list(column: npt.NDArray[np.int32]) -> list[int]:
    values: list[int] = column.tolist()
    return values


def _of_drawn(drawn: list[tuple[int, int]], listed: dict[int, Int64]) -> Scored | None:
    if not drawn:
        return None
    places, counts = zip(*drawn, strict=True)
    return Scored(
        np.array(places, np.int32),
        np.array(places, np.int64),
        np.array(counts, np.int32),
        np.empty(0, np.int64),
        listed,
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
    """Scores of some places of a step, perhaps still on their way from the device."""

    def __init__(self, scored: Scored) -> None:
        self._scored = scored
        self._found: list[tuple[Tensor, ...]] = []  # chosen, ranks, top_tokens, top; rows after one another
        self._token_ids: list[Tensor] = []
        self._listed: Tensor | None = (
            None  # log-probabilities of the tokens that rows list, one row after another
        )

    def add(self, kernels: Kernels, logits: Tensor, token_ids: Tensor) -> None:
        """Add the next rows: float32 logits [R, V] and their tokens, int64 [R]. Begins to bring them to the host."""
        done = sum(len(tokens) for tokens in self._token_ids)
        counts = _bounded(self._scored.counts[done : done + len(token_ids)], logits.shape[-1])
        found = kernels.top_logprobs(logits, token_ids, int(counts.max()))
        if self._scored.listed:
            self._listed = _to_host(_listed(self._scored.listed, logits, token_ids, found[0]))
        self._found.append(tuple(_to_host(tensor) for tensor in found))
        self._token_ids.append(_to_host(token_ids))
        self._vocab_size = logits.shape[-1]

    def columns(self) -> Logprobs:
        """Return all scores; the device has been waited for."""
        counts = _bounded(self._scored.counts, self._vocab_size)
        ids, top, first = [], [], 0
        for _, _, top_tokens, top_logprobs in self._found:
            kept = np.arange(top_tokens.shape[1]) < counts[first : first + len(top_tokens), None]
            ids.append(top_tokens.numpy()[kept])
            top.append(top_logprobs.numpy()[kept])
            first += len(top_tokens)
        if self._listed is not None:
            counts, ids, top = self._with_listed(self._listed.numpy(), counts, ids, top)
        return Logprobs(
            rows=self._scored.rows,
            token_ids=np.concatenate([tokens.numpy() for tokens in self._token_ids]).astype(np.int32),
            logprobs=np.concatenate([found[0].numpy() for found in self._found]),
            ranks=np.concatenate([found[1].numpy() for found in self._found]),
            counts=counts,
            top_ids=np.concatenate(ids),
            top=np.concatenate(top),
        )

    def _with_listed(
        self, logprobs: Float32, counts: Int32, ids: list[Int64], top: list[Float32]
    ) -> tuple[Int32, list[Int64], list[Float32]]:
        """Return counts, tokens and log-probabilities with those of the rows that list them put in their places."""
        listed = self._scored.listed
        ends = np.cumsum(counts)
        all_ids, all_top = np.concatenate(ids), np.concatenate(top)
        parts_ids, parts_top, counts, first = [], [], counts.copy(), 0
        for index, end in enumerate(ends.tolist()):
            if (own := listed.get(index)) is None:
                some = slice(end - counts[index], end)
                parts_ids.append(all_ids[some])
                parts_top.append(all_top[some])
                continue
            parts_ids.append(own)
            parts_top.append(logprobs[first : first + len(own)])
            first += len(own)
            counts[index] = len(own)
        return counts, parts_ids, parts_top


def _listed(listed: Mapping[int, Int64], logits: Tensor, token_ids: Tensor, logprobs: Tensor) -> Tensor:
    """The log-probabilities of listed tokens: they are as far from the drawn token's as their logits are.

    Args:
        logits: [N, V]; token_ids, logprobs: [N], of the tokens drawn.
    """
    from pageant.actors.executor.on_device import to_device

    rows = np.repeat(int64([*listed]), [len(ids) for ids in listed.values()])
    places = to_device(rows, logits.device)
    tokens = to_device(np.concatenate([*listed.values()]), logits.device)
    drawn = logits[places, token_ids[places]]
    return logits[places, tokens] - drawn + logprobs[places]


def score_prompts(
    scored: Scored, kernels: Kernels, logits_of: Callable[[Tensor], Tensor], hidden: Tensor
) -> Scoring:
    """Return the log-probabilities of prompts' tokens, given the step's hidden states [T, N] in the model's dtype."""
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
