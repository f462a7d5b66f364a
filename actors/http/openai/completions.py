"""`/v1/completions`: prompts, as texts or token ids, and what follows on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from litestar import Response, post

from pageant.actors.frontend.embeds import check_taken, decode_embeds
from pageant.actors.frontend.outputs import TokenLogprobs
from pageant.actors.frontend.prompts import EMBEDS, check_prompt
from pageant.actors.http.answers import Answers, Piece, PromptAnswers
from pageant.actors.http.errors import ErrorBody
from pageant.actors.http.openai.beams import search
from pageant.actors.http.openai.generation import CHOICES_MAX, Generation
from pageant.actors.http.openai.logprobs import (
    PromptLogprob,
    TextLogprobs,
    prompt_logprobs,
    text_logprobs,
)
from pageant.actors.http.openapi import describe
from pageant.actors.http.served import Served
from pageant.actors.http.service import (
    Http,
    Service,
    Taken,
    respond,
)
from pageant.actors.http.shapes import Reason, Usage, usage_of
from pageant.actors.http.streams import encode, sse
from pageant.actors.http.templates import Template
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams

_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_TEXTS = {"type": "array", "minItems": 1, "items": {"type": "string"}}
PROMPT_SCHEMA = {"anyOf": [{"type": "string"}, _IDS, _TEXTS, {"type": "array", "minItems": 1, "items": _IDS}]}
MAX_TOKENS = 16  # where neither the request nor the checkpoint says


class CompletionRequest(Generation, kw_only=True):
    """`POST /v1/completions`. `prompt_embeds` are one or several prompts, before those of `prompt`; see `embeds`."""

    prompt: Annotated[str | list[Any] | None, msgspec.Meta(extra_json_schema=PROMPT_SCHEMA)] = None
    logprobs: int | None = None
    suffix: str | None = None

    def num_logprobs(self) -> int | None:
        """See `Generation`."""
        return self.logprobs

    def max_output_tokens(self, default: int | None) -> int | None:
        """See `Generation`. Nothing but an echo takes one token, which is not shown."""
        return 1 if self.echo and self.max_tokens == 0 else super().max_output_tokens(default or MAX_TOKENS)

    def prompts(self) -> list[Any]:
        """Return one or several texts or lists of token ids, as a list of such.

        Raises:
            BadRequest: something else, or too many, or something is asked that cannot be done.
        """
        if self.suffix:
            raise BadRequest("suffix is given; expected none: this model fills nothing in", "suffix")
        if self.stream and self.echo and self.logprobs is not None:
            raise BadRequest(
                "logprobs of an echo cannot be streamed; expected stream to be false", "logprobs"
            )
        prompt = self.prompt
        if prompt is None or (prompt == "" and self.embedded()):
            if self.embedded():
                return []
            raise BadRequest("Object missing required field `prompt`", "prompt")
        if isinstance(prompt, str) or (prompt and type(prompt[0]) is int):
            return [prompt]
        if not prompt:
            raise BadRequest(
                "prompt is empty; expected a text, a list of token ids, or a list of such", "prompt"
            )
        if len(prompt) > CHOICES_MAX:
            raise BadRequest(f"prompt has {len(prompt)} entries; at most {CHOICES_MAX} are taken", "prompt")
        for index, one in enumerate(prompt):
            if not isinstance(one, str | list):
                raise BadRequest(
                    f"prompt[{index}] is a {type(one).__name__}; expected a text or a list of token ids",
                    "prompt",
                )
        return prompt

    def embedded(self) -> list[str]:
        """Return the prompts that are embeddings: safetensors files in base64.

        Raises:
            BadRequest: something is asked that needs the prompt's tokens.
        """
        given = self.prompt_embeds
        found = [given] if isinstance(given, str) else given or []
        if found and self.echo:
            raise BadRequest("echo is true; expected false with prompt_embeds, which have no text", "echo")
        if len(found) > CHOICES_MAX:
            raise BadRequest(
                f"prompt_embeds has {len(found)} entries; at most {CHOICES_MAX} are taken", "prompt_embeds"
            )
        return found


class TextChoice(msgspec.Struct, kw_only=True):
    """A completion, or the next piece of one."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: Reason | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class Completion(msgspec.Struct, kw_only=True):
    """The answer to a completion request, or a chunk of it."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: str | None = None
    usage: Usage | None = None


class CompletionWriter:
    """A completion, whole or chunk by chunk. `echoes` are what each prompt's choices begin with."""

    def __init__(
        self, asked: CompletionRequest, answers: Answers, model: str, created: int, echoes: Sequence[str]
    ) -> None:
        self._asked, self._answers, self._echoes = asked, answers, echoes
        self._body = Completion(id=answers.name, created=created, model=model, choices=[])
        self._offsets: dict[int, int] = {}  # where the next token of a choice begins in its text
        self._plain = self._template()
        self._weights = answers.weight_version  # that the template names
        self._always_plain = not (
            asked.return_token_ids or asked.logprobs is not None or asked.tells_usage_always
        )

    def first(self) -> Sequence[bytes]:
        """See `StreamWriter`."""
        return ()

    def next(self, piece: Piece) -> Sequence[bytes]:
        """See `StreamWriter`."""
        index, text = piece.choice.index, piece.said.content
        if piece.finished is None and self._always_plain and index in self._offsets:
            if (weights := self._answers.weight_version) != self._weights:
                self._plain, self._weights = self._template(), weights
            return (self._plain.fill(index, text),) if text else ()
        return (sse(encode(self._chunk([self._choice(piece)]))),)

    def last(self) -> Sequence[bytes]:
        """See `StreamWriter`."""
        usage = [sse(encode(self._chunk([], usage_of(self._answers))))] if self._asked.tells_usage else []
        return (*usage, sse(b"[DONE]"))

    def failed(self, error: ErrorBody) -> Sequence[bytes]:
        """See `StreamWriter`."""
        return (sse(encode(error)), sse(b"[DONE]"))

    def whole(self, pieces: Sequence[Piece], firsts: Sequence[str]) -> Completion:
        """Return the whole completion. `firsts` are the texts of the prompts' first tokens, if they are echoed."""
        return msgspec.structs.replace(
            self._body,
            choices=[self._choice(piece, firsts) for piece in pieces],
            usage=usage_of(self._answers),
            system_fingerprint=self._answers.fingerprint,
        )

    def _template(self) -> Template:
        return Template(lambda index, text: self._chunk([TextChoice(index=index, text=text)]), sse)

    def _chunk(self, choices: list[TextChoice], usage: Usage | None = None) -> Completion:
        if usage is None and self._asked.tells_usage_always:
            usage = usage_of(self._answers)
        fingerprint = self._answers.fingerprint
        return msgspec.structs.replace(
            self._body, choices=choices, usage=usage, system_fingerprint=fingerprint
        )

    def _choice(self, piece: Piece, firsts: Sequence[str] = ()) -> TextChoice:
        """A choice, or the next of it; what is known of its prompt comes with its first piece."""
        asked, prompt, index = self._asked, piece.choice.prompt, piece.choice.index
        echo = ""
        begins = index not in self._offsets
        if begins:
            echo = self._echoes[self._answers.prompts.index(prompt)]
        shape = TextChoice(index=index, text=echo + piece.said.content)
        hidden = bool(asked.echo) and asked.max_tokens == 0
        offset = self._offsets.get(index, 0)
        if hidden:
            shape.text = echo
        if piece.finished is not None:
            shape.finish_reason, shape.stop_reason = piece.finished.reason, piece.finished.stop_reason
        if asked.logprobs is not None:
            shape.logprobs, offset = self._logprobs(piece, prompt, firsts, hidden, offset)
        if asked.return_token_ids:
            shape.token_ids = list(piece.token_ids)
            shape.prompt_token_ids = prompt.token_ids if begins else None
        if asked.prompt_logprobs is not None:
            shape.prompt_logprobs = prompt_logprobs(prompt.logprobs)
        self._offsets[index] = offset  # not by the text so far: the end of that may be held back
        return shape

    def _logprobs(
        self, piece: Piece, prompt: PromptAnswers, firsts: Sequence[str], hidden: bool, offset: int
    ) -> tuple[TextLogprobs, int]:
        """And where the next token begins."""
        places: list[TokenLogprobs | None] = list(piece.logprobs)
        ids, first = list(piece.token_ids), ""
        if hidden:
            places, ids = [], []
        if self._asked.echo:
            places, ids = [*prompt.logprobs, *places], [*prompt.token_ids, *ids]
            first = firsts[self._answers.prompts.index(prompt)]
        as_ids = bool(self._asked.return_tokens_as_token_ids)
        return text_logprobs(places, ids, offset, as_ids, first)


async def answer(service: Service, request: Http) -> Response[Any]:
    """Return the response to a request for completions.

    Raises:
        Exception: what is wrong with it, or what ended it.
    """
    taken = await service.take(request, CompletionRequest, "cmpl")
    asked, served = taken.asked, taken.served
    prompts, embedded = asked.prompts(), asked.embedded()
    if asked.use_beam_search:
        found = await search(
            service,
            request,
            taken,
            [check_prompt(one, served.limits, served.limits.defaults) for one in prompts],
        )
        return await _respond(service, request, taken, found, [""] * len(prompts))
    num_prompts = len(embedded) + len(prompts)
    params = asked.sampling_params(served.limits.defaults, served.max_new_tokens, num_prompts)
    if asked.echo and params.logprobs is not None and params.prompt_logprobs is None:
        params = msgspec.structs.replace(params, prompt_logprobs=params.logprobs)
    structure = asked.structure()
    params = msgspec.structs.replace(params, structured_outputs=structure.asked)
    checked = [
        await service.engine.offload(
            _check_embeds, one, served, params, None if len(embedded) == 1 else index
        )
        for index, one in enumerate(embedded)
    ]
    checked += [check_prompt(prompt, served.limits, params) for prompt in prompts]
    echoes = await _echoes(service, served, prompts) if asked.echo else [""] * num_prompts
    answers = service.begin(
        *(served, checked, params, taken.name, asked.settings()),
        whole=not asked.stream,
        names={"structured_outputs": structure.place},
    )
    return await _respond(service, request, taken, answers, echoes)


async def _respond(
    service: Service,
    request: Http,
    taken: Taken[CompletionRequest],
    answers: Answers,
    echoes: Sequence[str],
) -> Response[Any]:
    asked, served = taken.asked, taken.served
    writer = CompletionWriter(asked, answers, served.name, service.now(), echoes)

    async def whole(pieces: list[Piece]) -> Completion:
        firsts: list[str] = []
        if asked.echo and asked.logprobs is not None:
            ids = [prompt.token_ids[:1] for prompt in answers.prompts]
            firsts = list(await service.detokenize(served, ids))
        return writer.whole(pieces, firsts)

    return await respond(service, request, answers, whole, writer if asked.stream else None, taken.headers)


def routes(service: Service) -> list[Any]:
    """The routes of this family."""

    @post("/v1/completions", status_code=200, opt=describe(CompletionRequest, Completion, streams=True))
    async def completions(request: Http) -> Response[Any]:
        """Complete one or several prompts."""
        return await answer(service, request)

    return [completions]


def _check_embeds(text: str, served: Served, params: SamplingParams, index: int | None) -> Any:
    """Return a prompt of embeddings, checked; `index` is its place among several."""
    try:
        check_taken(served.limits.embeds_size)  # before anything is read
        return check_prompt({EMBEDS: decode_embeds(text)}, served.limits, params)
    except BadRequest as error:
        if index is None:
            raise
        raise BadRequest(f"prompt_embeds[{index}]: {error}", error.parameter) from None


async def _echoes(service: Service, served: Served, prompts: Sequence[Any]) -> list[str]:
    """The prompts' texts."""
    ids = [prompt for prompt in prompts if not isinstance(prompt, str)]
    texts = iter(await service.detokenize(served, [np.asarray(one).tolist() for one in ids]) if ids else ())
    return [prompt if isinstance(prompt, str) else next(texts) for prompt in prompts]
