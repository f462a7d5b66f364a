"""Beam search, as transformers does it, over plain requests: each live beam asks for one token at a time.

What a beam's request computed stays in the prefix cache, so beams that begin alike share those blocks, and
the next token costs one decode. A search of its own in the scheduler was turned down: the rest of the engine
would have to know of it, for no less work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from pageant.actors.frontend.outputs import TokenLogprobs
from pageant.protocol.arrays import int32
from pageant.protocol.checks import check_integer, check_number
from pageant.protocol.errors import BadRequest
from pageant.protocol.parameters import Parameters
from pageant.protocol.sampling import SamplingParams

BEAM_WIDTH_MAX = 64


class BeamSettings(Parameters, frozen=True):
    """Settings of a beam search.

    Attributes:
        beam_width: the number of beams that live at a time, and are returned.
        max_tokens: the most tokens of a beam.
        ignore_eos: beams do not end at the model's end tokens.
        length_penalty: a beam's score is its log-probability divided by its length to this power.
        early_stopping: True ends when `beam_width` beams have ended; False, when no beam of the length reached
            can be better than those; "never", when none of any length can be.

    Raises:
        BadRequest: a value is out of range.
    """

    beam_width: int
    max_tokens: int = 16
    ignore_eos: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        check_integer("beam_width", self.beam_width, 1, BEAM_WIDTH_MAX)
        check_integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        check_number("length_penalty", self.length_penalty, -100.0, 100.0)
        if not isinstance(self.ignore_eos, bool):
            raise BadRequest(f"ignore_eos is {self.ignore_eos!r}; expected true or false", "ignore_eos")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise BadRequest(
                f"early_stopping is {self.early_stopping!r}; expected true, false or 'never'",
                "early_stopping",
            )


@dataclass(frozen=True)
class BeamSearchSequence:
    """Beam: its output tokens, text, log-probability and score, and whether an end token ended it.

    `tokens` are the prompt's and the output's, as in vLLM; `stop_reason` is the end token.
    """

    token_ids: list[int]
    cumulative_logprob: float
    score: float
    text: str = ""
    finish_reason: Literal["stop", "length", "abort"] = "length"
    tokens: list[int] = field(default_factory=list)
    stop_reason: int | None = None

    @property
    def cum_logprob(self) -> float:
        """vLLM's name of `cumulative_logprob`."""
        return self.cumulative_logprob


@dataclass(frozen=True)
class BeamSearchOutput:
    """A prompt and its best beams, best first."""

    prompt_token_ids: list[int]
    sequences: list[BeamSearchSequence]


class BeamSearch:
    """Search from one prompt: decides what to compute next, and keeps what comes of it.

    Args:
        end_tokens: the model's.
        max_model_len: of prompt and output together.
    """

    def __init__(
        self,
        prompt: npt.NDArray[np.int32],
        params: BeamSettings,
        end_tokens: Sequence[int],
        max_model_len: int,
    ) -> None:
        self.prompt, self.params = prompt, params
        self._ends = frozenset() if params.ignore_eos else frozenset(end_tokens)
        # So many continuations that enough are left when all that can end do.
        self._num_kept = max(2, 1 + len(self._ends)) * params.beam_width
        self._max_tokens = min(params.max_tokens, max_model_len - len(prompt))
        self._live: list[tuple[float, list[int]]] = [(0.0, [])]
        self._ended: list[BeamSearchSequence] = []
        self.done = False

    def prompts(self) -> list[npt.NDArray[np.int32]]:
        """Return the live beams, int32 [tokens] each, to be continued by one token as `request_params` say."""
        return [int32([*self.prompt.tolist(), *tokens]) for _, tokens in self._live]

    def request_params(self, vocab_size: int) -> SamplingParams:
        """Return the sampling parameters of each beam's request."""
        return SamplingParams(
            temperature=0, max_tokens=1, logprobs=min(self._num_kept, vocab_size), detokenize=False
        )

    def advance(self, places: Sequence[TokenLogprobs]) -> None:
        """Takes in what the live beams' requests say of their next token, in order."""
        width = self.params.beam_width
        found = []
        for (total, tokens), place in zip(self._live, places, strict=True):
            found += [(total + one.logprob, [*tokens, token]) for token, one in place.items()]
        found.sort(key=lambda beam: -beam[0])  # stable: equals stay in their beams' order
        found = found[: self._num_kept]
        length = len(found[0][1])
        ends = [tokens[-1] in self._ends or length >= self._max_tokens for _, tokens in found]
        full = self.params.early_stopping is True and len(self._ended) == width
        if not full:
            for (total, tokens), end in zip(found[:width], ends[:width], strict=True):
                if end:
                    self._end(total, tokens)
            self._ended = sorted(self._ended, key=lambda beam: -beam.score)[:width]
        self._live = [beam for beam, end in zip(found, ends, strict=True) if not end][:width]
        self.done = not self._live or not self._can_improve(length)

    def cut(self) -> None:
        """Ends the search with what it has: the live beams are beams too, as far as they have come."""
        width = self.params.beam_width
        aborted = [
            BeamSearchSequence(
                token_ids=tokens,
                cumulative_logprob=total,
                score=total / max(1, len(tokens)) ** self.params.length_penalty,
                finish_reason="abort",
            )
            for total, tokens in self._live
        ]
        self._ended = sorted([*self._ended, *aborted], key=lambda beam: -beam.score)[:width]
        self._live, self.done = [], True

    def _end(self, total: float, tokens: list[int]) -> None:
        self._ended.append(
            BeamSearchSequence(
                token_ids=tokens,
                cumulative_logprob=total,
                score=total / len(tokens) ** self.params.length_penalty,
                finish_reason="stop" if tokens[-1] in self._ends else "length",
            )
        )

    def _can_improve(self, length: int) -> bool:
        """Tell whether a live beam could still be among the best, as `early_stopping` judges."""
        params = self.params
        if len(self._ended) < params.beam_width:
            return True
        if params.early_stopping is True:
            return False
        longest = params.early_stopping == "never" and params.length_penalty > 0
        best: float = self._live[0][0] / (self._max_tokens if longest else length) ** params.length_penalty
        return best > self._ended[-1].score

    def output(self, texts: Sequence[str]) -> BeamSearchOutput:
        """The best beams, with their texts, in the order of `best`."""
        sequences = [
            BeamSearchSequence(
                token_ids=beam.token_ids,
                cumulative_logprob=beam.cumulative_logprob,
                score=beam.score,
                text=text,
                finish_reason=beam.finish_reason,
                tokens=[*self.prompt.tolist(), *beam.token_ids],
                stop_reason=beam.token_ids[-1] if beam.finish_reason == "stop" else None,
            )
            for beam, text in zip(self._ended, texts, strict=True)
        ]
        return BeamSearchOutput(self.prompt.tolist(), sequences)

    @property
    def best(self) -> list[list[int]]:
        """The tokens of the best beams."""
        return [beam.token_ids for beam in self._ended]
