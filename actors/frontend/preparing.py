"""Preparation of requests before they are submitted: the prompt is tokenized, and all parameters are checked."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.actors.frontend.embeds import EmbeddedPrompt
from pageant.actors.frontend.given_audio import PromptWithAudio, attended, check_audio
from pageant.actors.frontend.images import (
    PromptWithImages,
    check_images,
    check_placeholders,
    expand,
    images_of,
    marks_of,
    place_of,
    without_images,
)
from pageant.actors.frontend.marks import reasoning_marks
from pageant.actors.frontend.peers import CAST, Peers
from pageant.actors.frontend.pooling import bounded_text, check_text_length, truncated_ids
from pageant.actors.frontend.prompts import (
    check_allowed,
    check_length,
    check_vocabulary,
    truncated,
)
from pageant.actors.frontend.requests import Opening
from pageant.actors.frontend.trials import Trials
from pageant.actors.runtime import Actor
from pageant.protocol.arrays import int32
from pageant.protocol.embedding import PLACEHOLDER_TOKEN, PromptEmbeds, row_names
from pageant.protocol.encoding import Encoded, EncodedImage, EncodeImages, ImagePart, VideoPart
from pageant.protocol.errors import BadRequest, Unsupported
from pageant.protocol.guiding import CompileGrammar, GrammarRefused
from pageant.protocol.hearing import EncodeAudio, EncodedAudio, SpeechRules
from pageant.protocol.pooling import PoolingParams
from pageant.protocol.roles import ROLES, Feature, features_needed
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.protocol.thinking import GetMarks, Thinking
from pageant.protocol.tokenizing import Detokenize, Tokenize, TokenizeChat, Tokenized

MARK_TOKENS_MAX = 64  # of a mark, and of the blanks after it
TOKENIZE_SECONDS = 60.0
COMPILE_SECONDS = 60.0
ENCODE_SECONDS = 600.0  # many images may wait, and a CPU takes a second for each

ReasoningMarks = tuple[str, str]
AnyPrompt = Tokenize | TokenizeChat | npt.NDArray[np.int32]
Prompt = AnyPrompt | EmbeddedPrompt | PromptWithImages | PromptWithAudio


class Prepared(NamedTuple):
    """The arguments of a submission."""

    text: str | None
    """The prompt's text; None where it has none."""
    token_ids: npt.NDArray[np.int32]
    """int32 [tokens]: the prompt's tokens; placeholders where it consists of embeddings."""
    params: SamplingParams
    """The parameters, with the constraint as it holds after this prompt."""
    bad_words: tuple[tuple[int, ...], ...]
    """The tokens of each bad word."""
    thinking: Thinking | None
    """The budget of the model's reasoning; None without one."""
    embeds: PromptEmbeds | None = None
    """The prompt's embeddings; None where it consists of tokens."""
    pooling: PoolingParams | None = None
    """How the prompt's hidden states are pooled; None where tokens are generated."""
    speech: SpeechRules | None = None
    """The rules of a text that is heard; None without any."""


class Preparation:
    """Prepares the requests to one model: tokenizes prompts, compiles grammars, refuses what cannot be served."""

    def __init__(self, frontend: Actor, peers: Peers) -> None:
        self._peers = peers
        self._tokenizer = Trials(frontend, peers.address("tokenizer"))
        self._encoder = Trials(frontend, peers.address("encoder"))
        another = peers.wait if peers.model.is_replicated else None
        self._grammar = Trials(frontend, partial(peers.address, "grammar"), another)
        self._detokenizer = Trials(frontend, partial(peers.address, "detokenizer"), another)
        self._frontend = frontend
        self._own_marks: ReasoningMarks | None = None

    async def prepare(self, opening: Opening) -> Prepared:
        """Prepare a request, and wait until every actor is up that computes it.

        Raises:
            BadRequest: it cannot be served as it is.
            Unsupported: an actor does not honour what it asks for.
            RequestFailed: an actor dies of it.
            PeerGone: an actor will not come back.
        """
        await self._peers.wait()
        params, max_model_len = opening.params, self._peers.model.max_model_len
        self._check_features(opening)
        if opening.pooling is not None:
            return await self._prepare_pooled(opening, opening.pooling)
        if not opening.is_probe:
            check_audio(isinstance(opening.prompt, PromptWithAudio), self._peers.model.audio, params)
        text, token_ids, embeds = await self._read(opening.prompt, params)
        check_length(len(token_ids), max_model_len)
        bad_words = await self._tokenize_bad_words(params.bad_words)
        check_allowed(params, bad_words)
        if params.structured_outputs is not None:
            asked = params.structured_outputs.after(text or "")
            params = msgspec.structs.replace(params, structured_outputs=asked)
            await self._compile_grammar(asked)
        thinking = await self._thinking(opening, text, token_ids)
        await self._peers.wait()
        speech, pooling = None, None
        if isinstance(opening.prompt, PromptWithAudio):
            speech, pooling = opening.prompt.rules, opening.prompt.pooling
        return Prepared(text, token_ids, params, bad_words, thinking, embeds, pooling, speech)

    async def _read(
        self, prompt: Prompt, params: SamplingParams
    ) -> tuple[str | None, npt.NDArray[np.int32], PromptEmbeds | None]:
        """Return a prompt's text, if it has one, its tokens, and what stands in for the embeddings of some."""
        max_model_len = self._peers.model.max_model_len
        if isinstance(prompt, EmbeddedPrompt):
            rows = truncated(prompt.rows, params, max_model_len)
            names = await self._frontend.offload(row_names, rows)
            return None, np.full(len(rows), PLACEHOLDER_TOKEN, np.int32), PromptEmbeds(rows=rows, names=names)
        if isinstance(prompt, PromptWithAudio):
            return await self._read_with_audio(prompt, params)
        if images := images_of(prompt):
            assert isinstance(prompt, PromptWithImages | TokenizeChat), "others have no images"
            return await self._read_with_images(prompt, images, params)
        assert not isinstance(prompt, PromptWithImages), "it has images"
        text, token_ids = await self._tokenize(_bounded(prompt, params, max_model_len), "prompt")
        token_ids = truncated(token_ids, params, max_model_len)
        if (inputs := self._peers.model.images) is not None:
            check_placeholders(token_ids, (), inputs, "prompt")
        return text, token_ids, None

    async def _read_with_images(
        self,
        prompt: PromptWithImages | TokenizeChat,
        images: tuple[ImagePart | VideoPart, ...],
        params: SamplingParams,
    ) -> tuple[str | None, npt.NDArray[np.int32], PromptEmbeds | None]:
        """Return the text of a prompt with images or videos, its tokens, and what these are embedded as."""
        inputs, name = self._peers.model.images, "messages" if isinstance(prompt, TokenizeChat) else "prompt"
        check_images(images, inputs, params, name)
        assert inputs is not None, "checked above"
        bare, most = without_images(prompt, inputs), self._peers.model.max_model_len
        text, token_ids = await self._tokenize(_bounded(bare, params, most), name)
        check_placeholders(token_ids, images, inputs, name)  # before images cost anything
        answer = await self._encoder.ask(EncodeImages(images=images, tokens_max=most - 1), ENCODE_SECONDS)
        if not isinstance(answer, Encoded):
            raise BadRequest(f"{name}: {place_of(images, answer.index)}: {answer.reason}", name)
        marks = await self._tokenize_marks(answer.images, name)
        token_ids, embeds = expand(token_ids, answer.images, inputs, marks)
        return text, token_ids, embeds

    async def _tokenize_marks(
        self, images: tuple[EncodedImage, ...], name: str
    ) -> dict[str, npt.NDArray[np.int32]]:
        """Return the tokens of texts that tell times within videos."""
        marks = marks_of(images)
        asked = (self._tokenize(Tokenize(text=mark, add_special_tokens=False), name) for mark in marks)
        tokens = [token_ids for _, token_ids in await asyncio.gather(*asked)]
        return dict(zip(marks, tokens, strict=True))

    async def _read_with_audio(
        self, prompt: PromptWithAudio, params: SamplingParams
    ) -> tuple[str | None, npt.NDArray[np.int32], PromptEmbeds | None]:
        """Return the text of a prompt with a sound, its tokens, and what they attend to."""
        bare = prompt.prompt
        if isinstance(bare, Tokenize):  # the tokenizer would begin and end a whole text
            bare = msgspec.structs.replace(bare, add_special_tokens=False)
        text, token_ids = await self._tokenize(
            _bounded(bare, params, self._peers.model.max_model_len), "prompt"
        )
        check_length(len(token_ids), self._peers.model.max_model_len)  # before the sound costs anything
        answer = await self._encoder.ask(EncodeAudio(audio=prompt.audio), ENCODE_SECONDS)
        if not isinstance(answer, EncodedAudio):
            raise BadRequest(answer.reason, "file")
        return text, token_ids, attended(answer)

    async def _prepare_pooled(self, opening: Opening, params: PoolingParams) -> Prepared:
        """Return a text to be pooled, cut to what its parameters say."""
        model, prompt = self._peers.model, opening.prompt
        assert model.pooled is not None, "checked on the way in"
        assert not isinstance(prompt, EmbeddedPrompt | PromptWithImages | PromptWithAudio), "checked before"
        text, second = None, None
        if isinstance(prompt, Tokenize | TokenizeChat):
            answer = await self._ask_tokens(bounded_text(prompt, params, model.max_model_len))
            text, prompt, second = answer.text, answer.token_ids, answer.second_segment
        token_ids = truncated_ids(prompt, params, model.max_model_len)
        check_text_length(len(token_ids), model.max_model_len)
        await self._peers.wait()
        pooling = msgspec.structs.replace(
            params,
            second_segment=second if model.pooled.has_token_types else None,
            reads_all=model.pooled.reads_all or params.is_of_tokens,
        )
        return Prepared(text, token_ids, opening.params, (), None, None, pooling)

    def _check_features(self, opening: Opening) -> None:
        """Refuse by name what an actor of this topology does not honour."""
        needed = set(features_needed(opening.params, opening.settings.get("adapter")))
        if isinstance(opening.prompt, TokenizeChat):
            needed |= ROLES["tokenizer"].features
        if isinstance(opening.prompt, EmbeddedPrompt):
            needed.add(Feature.PROMPT_EMBEDS)
        if images_of(opening.prompt):
            needed.add(Feature.IMAGES)
        if isinstance(opening.prompt, PromptWithAudio):
            needed.add(Feature.AUDIO)
            if opening.prompt.alignment is not None:
                needed.add(Feature.POOLING)
        if opening.pooling is not None:
            needed.add(Feature.POOLING)
        for role in CAST:
            for feature in sorted(needed & ROLES[role].features):
                if not all(feature in features for features in self._peers.role(role)):
                    raise Unsupported(
                        f"this request needs {feature}, which this topology's {role} does not honour"
                    )

    async def _tokenize(self, prompt: AnyPrompt, name: str) -> tuple[str | None, npt.NDArray[np.int32]]:
        """A prompt's text, if it has one, and its tokens; `name` is the parameter that has it."""
        if not isinstance(prompt, Tokenize | TokenizeChat):
            return None, prompt
        answer = await self._ask_tokens(prompt, name)
        return answer.text, answer.token_ids

    async def _ask_tokens(self, prompt: Tokenize | TokenizeChat, name: str = "prompt") -> Tokenized:
        """Return the tokens of a text. `name` is the parameter that has it.

        Raises:
            BadRequest: it cannot be tokenized, or has tokens that the model does not know.
        """
        answer = await self._tokenizer.ask(prompt, TOKENIZE_SECONDS)
        if not isinstance(answer, Tokenized):
            raise BadRequest(answer.reason, answer.parameter)
        check_vocabulary(answer.token_ids, self._peers.model.vocab_size, name)
        return answer

    async def _tokenize_bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Tokenize each word as in vLLM: as it begins a text and, if its first token then differs, as it
        follows a blank.
        """
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            alone = Tokenize(text=word.lstrip() or word, add_special_tokens=False)
            after = Tokenize(text=" " + word.lstrip(), add_special_tokens=False)
            _, bare = await self._tokenize(alone, "bad_words")
            _, led = await self._tokenize(after, "bad_words")
            found[tuple(bare.tolist())] = None
            if len(bare) and len(led) == len(bare) and led[0] != bare[0]:
                found[tuple(led.tolist())] = None
        return tuple(ids for ids in found if ids)

    async def _thinking(
        self, opening: Opening, text: str | None, token_ids: npt.NDArray[np.int32]
    ) -> Thinking | None:
        """The marks of thoughts that are bounded; None where there is no bound, or the prompt has ended them."""
        if opening.params.thinking_token_budget is None:
            return None
        marks = opening.settings.get("reasoning_marks") or await self._marks_of_model()
        if marks is None:
            raise BadRequest(
                "thinking_token_budget is given; expected none: this model does not mark what it thinks",
                "thinking_token_budget",
            )
        begin, end = marks
        found = await self._detokenizer.ask(GetMarks(begin=begin, end=end), TOKENIZE_SECONDS)
        if found.begin is None or found.end is None:
            raise BadRequest(
                f"thinking_token_budget is given; the model's tokens do not spell {end!r}",
                "thinking_token_budget",
            )
        said = (await self._end_of(token_ids) if text is None else text).rstrip()
        if said.endswith(end):
            return None
        return Thinking(begin=found.begin, end=found.end, is_open=said.endswith(begin))

    async def _marks_of_model(self) -> ReasoningMarks | None:
        """Return the marks around the model's reasoning, from its chat template."""
        model = self._peers.model
        if self._own_marks is None and model.tokenizer is not None:
            self._own_marks = await self._frontend.offload(
                reasoning_marks, model.tokenizer, model.chat_template
            )
        return self._own_marks

    async def _end_of(self, token_ids: npt.NDArray[np.int32]) -> str:
        """The text of a prompt's last tokens."""
        last = token_ids[-MARK_TOKENS_MAX:]
        request = Detokenize(counts=int32([len(last)]), token_ids=last, skip_special_tokens=False)
        (text,) = (await self._tokenizer.ask(request, TOKENIZE_SECONDS)).texts
        return text

    async def _compile_grammar(self, asked: StructuredOutputsParams) -> None:
        """Refuses a request whose output cannot be made to look as it asks."""
        answer = await self._grammar.ask(CompileGrammar(structured_outputs=asked), COMPILE_SECONDS)
        if isinstance(answer, GrammarRefused):
            place = f"structured_outputs.{asked.kind}"
            raise BadRequest(f"{place}: {answer.reason}", "structured_outputs", place)


def _bounded(prompt: AnyPrompt, params: SamplingParams, max_model_len: int) -> AnyPrompt:
    """Return the prompt with the most tokens that it may have, unless it is truncated."""
    if isinstance(prompt, np.ndarray) or params.truncate_prompt_tokens is not None:
        return prompt
    return msgspec.structs.replace(prompt, tokens_max=max_model_len - 1)
