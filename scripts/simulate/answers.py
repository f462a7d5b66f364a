"""The right answers: what each request must come to, whatever happens. They share no arithmetic with the stand-in for
the model whose tokens they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from pageant.actors.executor.simulated_model import FIRST_TOKEN, LOGPROBS, SCORE_BITS, SCORE_STEP
from pageant.actors.grammar.compiling import Compiler
from pageant.models.tokenization import Tokenization
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.scripts.simulate.topology import END_TOKENS, MODEL, VOCAB_SIZE, StandIn

if TYPE_CHECKING:
    from llguidance import LLMatcher

_WORD = 2**64 - 1


@dataclass(frozen=True)
class Answer:
    """One sample's right end."""

    token_ids: list[int]
    logprobs: list[float]
    reason: str
    stop_reason: str | int | None
    text: str


@cache
def tokenization() -> Tokenization:
    """The oracle's own."""
    return Tokenization.from_checkpoint(MODEL)


@cache
def _grammar(asked: StructuredOutputsParams) -> LLMatcher:
    return _compiler().compile(asked)


@cache
def _compiler() -> Compiler:
    return Compiler(tokenization(), VOCAB_SIZE, END_TOKENS)


def answer(prompt_ids: Sequence[int], params: SamplingParams, sample: int, model: StandIn) -> Answer:
    """Return what a sample of a request must come to."""
    tokens: list[int] = []
    logprobs: list[float] = []
    text = ""
    for token, logprob in _drawn(prompt_ids, params, sample, model):
        tokens.append(token)
        logprobs.append(logprob)
        shown = text
        if params.detokenize:
            text = text_of(prompt_ids, tokens)
        if token in END_TOKENS and params.structured_outputs is not None:
            return Answer(tokens, logprobs, "stop", None, shown)
        if len(tokens) >= params.min_tokens and token in params.stop_token_ids:
            return Answer(tokens, logprobs, "stop", token, shown)
        stop, place = _first_stop(text, params)
        if stop is not None:
            kept = text[: place + len(stop)] if params.include_stop_str_in_output else text[:place]
            return Answer(tokens, logprobs, "stop", stop, kept)
    return Answer(tokens, logprobs, "length", None, text)


def text_of(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
    """Return what these tokens say after a prompt, whatever they should stop at."""
    return _decoded([*prompt_ids, *token_ids])[len(_decoded(prompt_ids)) :]


def _decoded(token_ids: Sequence[int]) -> str:
    return tokenization().decode(token_ids, skip_special_tokens=True)


def _first_stop(text: str, params: SamplingParams) -> tuple[str | None, int]:
    """The stop string that is complete first, and where it begins; of those, the longest."""
    places = [(text.find(stop) + len(stop), -len(stop), stop) for stop in params.stop if stop in text]
    if not places:
        return None, 0
    end, _, stop = min(places)
    return stop, end - len(stop)


def _drawn(
    prompt: Sequence[int], params: SamplingParams, sample: int, model: StandIn
) -> Iterator[tuple[int, float]]:
    """One token after another, with its log-probability."""
    noise = (params.seed or 0, sample) if params.temperature > 0 else (0, 0)
    left, output = list[int](), list[int]()  # by tokens in the slots of their positions, and drawn
    guide = None if params.structured_outputs is None else _grammar(params.structured_outputs).deep_copy()
    shaped = params.has_penalties or params.logit_bias or params.allowed_token_ids or params.min_tokens
    for position, token in enumerate(prompt):
        left.append(_mixed(token, position))
    for position in range(len(prompt), len(prompt) + (params.max_tokens or 0)):
        seen = _seen(left, model)
        sayable = range(FIRST_TOKEN, FIRST_TOKEN + model.alphabet) if guide is None else _allowed(guide)
        mixed = _mixed(seen, *noise, position)
        scores: list[float] = [
            ((mixed * (2 * token + 1) & _WORD) >> (64 - SCORE_BITS)) / SCORE_STEP for token in sayable
        ]
        if shaped:
            pairs = zip(sayable, scores, strict=True)
            scores = [_shaped(score, token, prompt, output, params) for token, score in pairs]
        token = sayable[scores.index(max(scores))]  # the first of equals
        if guide is not None:
            guide.consume_token(token)
        output.append(token)
        yield token, -(_mixed(seen, token) % LOGPROBS) / 256
        left.append(_mixed(token, position))


def _seen(left: list[int], model: StandIn) -> int:
    """Return what each group of layers sees through its window, the first once, the second three times, and so on."""
    parts = (left if window is None else left[-window:] for window in model.windows)
    return sum((2 * group + 1) * sum(part) for group, part in enumerate(parts)) & _WORD


def _allowed(guide: LLMatcher) -> list[int]:
    bits = np.unpackbits(np.frombuffer(guide.compute_bitmask(), np.uint8), bitorder="little")
    return [token for token in np.flatnonzero(bits).tolist() if token < VOCAB_SIZE]


def _shaped(
    score: float, token: int, prompt: Sequence[int], output: list[int], params: SamplingParams
) -> float:
    """Return what a request makes of a token's score, as the documentation of `SamplingParams` has it."""
    held_back = len(output) < params.min_tokens and token in params.stop_token_ids
    if held_back or (params.allowed_token_ids is not None and token not in params.allowed_token_ids):
        return -math.inf
    score += (params.logit_bias or {}).get(token, 0.0)
    count = output.count(token)
    if params.repetition_penalty != 1 and (count or token in prompt):
        score = score / params.repetition_penalty if score > 0 else score * params.repetition_penalty
    return score - params.frequency_penalty * count - params.presence_penalty * (count > 0)


def _mixed(*values: int) -> int:
    """64 bits that depend on all bits of all values."""
    mixed = 0
    for value in values:
        mixed = (mixed ^ value) * 0x9E3779B97F4A7C15 & _WORD
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        mixed ^= mixed >> 27
    return mixed
