"""Prompts in vLLM's mappings."""

from __future__ import annotations

from typing import Any, TypedDict

from pageant.actors.frontend.prompts import Prompt


class TextPrompt(TypedDict, total=False):
    """A prompt as a text.

    Attributes:
        prompt: the text.
        cache_salt: its cached prefixes are shared only with requests of the same salt.
        multi_modal_data, mm_processor_kwargs, multi_modal_uuids: taken where they hold nothing.
    """

    prompt: str
    cache_salt: str | None
    multi_modal_data: Any
    mm_processor_kwargs: Any
    multi_modal_uuids: Any


class TokensPrompt(TypedDict, total=False):
    """A prompt as token ids; `prompt` is their text, which is not read."""

    prompt_token_ids: list[int]
    prompt: str | None
    cache_salt: str | None
    multi_modal_data: Any
    mm_processor_kwargs: Any
    multi_modal_uuids: Any


class EmbedsPrompt(TypedDict, total=False):
    """A prompt as embeddings; `prompt` is its text, which is not read.

    Attributes:
        prompt_embeds: a tensor or an array [tokens, hidden_size], where the model has `enable_prompt_embeds`.
    """

    prompt_embeds: Any
    prompt: str | None
    cache_salt: str | None


PromptType = Prompt | TextPrompt | TokensPrompt | EmbedsPrompt
