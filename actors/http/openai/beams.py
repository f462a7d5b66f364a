"""`use_beam_search`: requests whose choices are the best beams of a search, `n` of them for each prompt.

A search is many requests, one for each live beam and token (see `frontend.beam_search`). What it finds is told as the
answer of one request would be, so that all shapes of answers are the same as without.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.actors.frontend.beam_search import BeamSearch, BeamSearchSequence, BeamSettings
from pageant.actors.frontend.embeds import EmbeddedPrompt
from pageant.actors.frontend.given_audio import PromptWithAudio
from pageant.actors.frontend.images import PromptWithImages
from pageant.actors.frontend.outputs import Arrived
from pageant.actors.frontend.prompts import RequestSettings, check_length, check_vocabulary
from pageant.actors.http.answers import Answers, Piece
from pageant.actors.http.naming import written_as
from pageant.actors.http.openai.generation import CHOICES_MAX, Generation
from pageant.actors.http.served import Served
from pageant.actors.http.service import Http, Service, Taken
from pageant.actors.http.streams import until_gone
from pageant.actors.parsers.base import OutputParser
from pageant.protocol.arrays import int32
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Finished
from pageant.protocol.tokenizing import Detokenize, Tokenize, TokenizeChat, Tokenized

__all__ = ["search"]

Prompt = Tokenize | TokenizeChat | npt.NDArray[np.int32] | EmbeddedPrompt | PromptWithImages | PromptWithAudio

# Of what a request may ask for: what changes which tokens are drawn, or tells of them.
_NOT_SEARCHED = (
    *("best_of", "logprobs", "prompt_logprobs", "logprob_token_ids", "echo", "structured_outputs"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids"),
    *(
        "bad_words",
        "stop",
        "stop_token_ids",
        "min_tokens",
        "include_stop_str_in_output",
        "truncate_prompt_tokens",
    ),
    *("thinking_token_budget", "vllm_xargs", "prompt_embeds"),
)
_DEFAULTS = SamplingParams()


async def search(
    service: Service,
    request: Http,
    taken: Taken[Any],
    prompts: Sequence[Prompt],
    parser: Callable[[], OutputParser] | None = None,
) -> Answers:
    """Search for the best continuations of prompts. Return them as the choices of an answer that has ended.

    Raises:
        BadRequest: what is wrong with the request.
        Exception: what ended it.
    """
    asked, served = taken.asked, taken.served
    params = _params(asked, served, len(prompts))
    settings = asked.settings()
    deadline = settings.pop("deadline", None)
    tokens = [
        await _tokens(service, served, prompt)
        for prompt in prompts
        if not isinstance(prompt, EmbeddedPrompt | PromptWithImages | PromptWithAudio)  # those were refused
    ]
    searches = [BeamSearch(ids, params, served.end_tokens, served.limits.max_model_len) for _, ids in tokens]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(deadline):
            while going := [one for one in searches if not one.done]:
                await _step(service, request, taken, settings, going)
    for one in searches:
        if not one.done:
            one.cut()
    return await _told(service, taken, searches, [text for text, _ in tokens], parser)


def _params(asked: Generation, served: Served, num_prompts: int) -> BeamSettings:
    for name in _NOT_SEARCHED:
        found = getattr(asked, name)
        if found not in (None, False, (), getattr(_DEFAULTS, name, None)):
            raise BadRequest(f"{name} is {found!r:.80}; expected none with use_beam_search", name)
    if asked.response_format is not None and asked.response_format.type != "text":
        raise BadRequest("response_format is given; expected none with use_beam_search", "response_format")
    width = asked.n or 1
    if width * num_prompts > CHOICES_MAX:
        reason = f"n is {width}, which for {num_prompts} prompts is more than the {CHOICES_MAX} choices"
        raise BadRequest(f"{reason} that one request may have", "n")
    most = asked.max_output_tokens(served.max_new_tokens)
    with written_as({"beam_width": "n"}):
        return BeamSettings(
            beam_width=width,
            max_tokens=served.limits.max_model_len if most is None else most,
            ignore_eos=bool(asked.ignore_eos),
            length_penalty=1.0 if asked.length_penalty is None else asked.length_penalty,
            early_stopping=asked.early_stopping or False,
        )


async def _tokens(
    service: Service, served: Served, prompt: Tokenize | TokenizeChat | npt.NDArray[np.int32]
) -> tuple[str | None, npt.NDArray[np.int32]]:
    """Return a prompt's text, if it has one, and its tokens."""
    if isinstance(prompt, np.ndarray):
        return None, prompt
    most = served.limits.max_model_len
    answer = await service.ask(served, "tokenizer", msgspec.structs.replace(prompt, tokens_max=most))
    if not isinstance(answer, Tokenized):
        raise BadRequest(answer.reason, answer.parameter)
    check_vocabulary(answer.token_ids, served.limits.vocab_size)
    check_length(len(answer.token_ids), most)
    return answer.text, answer.token_ids


async def _step(
    service: Service,
    request: Http,
    taken: Taken[Any],
    settings: RequestSettings,
    going: Sequence[BeamSearch],
) -> None:
    """Give every live beam its next tokens."""
    limits = taken.served.limits
    any_logprobs = replace(taken.served, limits=replace(limits, max_logprobs=-1))
    beams = [beam for one in going for beam in one.prompts()]
    params = going[0].request_params(limits.vocab_size)  # the same of all
    answers = service.begin(any_logprobs, beams, params, taken.name, settings, whole=True)
    try:
        async with until_gone(request.receive, answers):
            pieces = iter(await answers.whole())
    except BaseException:
        answers.close()
        raise
    for one in going:
        found: list[Piece] = [next(pieces) for _ in one.prompts()]
        if answers.is_aborted or any(not piece.logprobs for piece in found):
            one.cut()
        else:
            one.advance([piece.logprobs[0] for piece in found])


async def _told(
    service: Service,
    taken: Taken[Any],
    searches: Sequence[BeamSearch],
    texts: Sequence[str | None],
    parser: Callable[[], OutputParser] | None,
) -> Answers:
    """Return the beams as the choices of an answer that has ended."""
    beams = [one.best for one in searches]
    ids = [beam for found in beams for beam in found]
    request = Detokenize(
        counts=int32([len(beam) for beam in ids]),
        token_ids=int32([token for beam in ids for token in beam]),
        skip_special_tokens=taken.asked.skip_special_tokens is not False,
    )
    written = iter((await service.ask(taken.served, "tokenizer", request)).texts)
    params = SamplingParams(n=searches[0].params.beam_width)
    answers = Answers(taken.name, len(searches), params, parser, lambda _: None, lambda _: None)
    answers.trim([len(found) for found in beams])  # one that was cut short may have few
    for prompt, one, text in zip(answers.prompts, searches, texts, strict=True):
        prompt.accepted(text, one.prompt.tolist())
        for place, beam in enumerate(one.output([next(written) for _ in one.best]).sequences):
            prompt.output(Arrived(place, beam.text, beam.token_ids, _finished(beam)))
    return answers


def _finished(beam: BeamSearchSequence) -> Finished:
    return Finished(reason=beam.finish_reason, num_output_tokens=len(beam.token_ids))
