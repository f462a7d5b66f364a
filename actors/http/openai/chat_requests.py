"""Requests for `/v1/chat/completions`, and the chats that they mean."""

from __future__ import annotations

from typing import Any

import msgspec

from pageant.actors.http.chat.conversation import (
    DEFAULT_RULES,
    TEMPLATES,
    ConversationRules,
    effort_variables,
    tokenize_chat,
)
from pageant.actors.http.chat.request import Chat
from pageant.actors.http.chat.tools import Tools
from pageant.actors.http.chat.turns import Turn
from pageant.actors.http.naming import (
    AS_INSIDE,
    Names,
    through,
    written_as,
)
from pageant.actors.http.openai.generation import Generation
from pageant.actors.http.openai.offered_tools import (
    Choice,
    OfferedTool,
    chosen,
    customs,
    functions_of,
    held_arguments,
    left_out,
)
from pageant.actors.http.reading import convert
from pageant.actors.http.served import Served
from pageant.actors.parsers.formats import NO_FORMATS, Formats
from pageant.protocol.errors import BadRequest
from pageant.protocol.tokenizing import TokenizeChat


class ChatRequest(Generation, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: tuple[Turn, ...]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: tuple[OfferedTool, ...] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: str | None = None
    documents: tuple[dict[str, Any], ...] | None = None

    def fields_without_effect(self, formats: Formats = NO_FORMATS) -> list[str]:
        """Return the places of what is known here, and cannot be told to a model."""
        conversations = [one if isinstance(one, tuple) else (one,) for one in self.messages]
        said = [place for turns in conversations for turn in turns for place in turn.passed_over()]
        return list(
            dict.fromkeys([*super().fields_without_effect(formats), *left_out(self.tools, formats), *said])
        )

    def num_logprobs(self) -> int | None:
        """See `Generation`."""
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("top_logprobs is given; expected logprobs to be true with it", "top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def names(self) -> Names:
        """Return the client's names of parameters that have other names inside."""
        newer = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {**TEMPLATES, "prompt": "messages", "logprobs": "top_logprobs", "max_tokens": newer}

    def max_output_tokens(self, default: int | None) -> int | None:
        """See `Generation`. OpenAI's newer name wins."""
        newer = self.max_completion_tokens
        return super().max_output_tokens(default) if newer is None else newer

    def template_kwargs(self) -> dict[str, Any]:
        """Return further variables of the chat template. Those that the request names itself win."""
        given = {} if self.reasoning_effort is None else effort_variables(self.reasoning_effort)
        return {**given, **(self.chat_template_kwargs or {})}

    def conversation(self, rules: ConversationRules = DEFAULT_RULES) -> TokenizeChat:
        """The messages, as the tokenizer takes them.

        Raises:
            BadRequest: what is wrong with one of them.
        """
        return tokenize_chat(
            self.messages,
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
            add_special_tokens=bool(self.add_special_tokens),
            tools=functions_of(self.tools, self.tool_choice) if self.tool_choice != "none" else None,
            template_kwargs=self.template_kwargs(),
            documents=self.documents,
            chat_template=self.chat_template,
            rules=rules,
        )

    def echoed(self) -> str:
        """Return the text that every choice begins with."""
        final = self.messages[-1]
        if not self.echo or self.add_generation_prompt is not False or final.role != "assistant":
            return ""
        return final.text("messages") or ""

    def chat(
        self, served: Served, rules: ConversationRules, outer: Names = AS_INSIDE, num_chats: int = 1
    ) -> Chat:
        """Return the chat that it means, for a model.

        Args:
            outer: names of parameters, where the request was made of another kind of request.
            num_chats: the number of chats with the same parameters, this one included.

        Raises:
            BadRequest: what is wrong with it.
        """
        names = through(self.names(), outer)
        with written_as(names):
            self._refuse_others()
            return Chat(
                params=self.sampling_params(served.limits.defaults, served.max_new_tokens, num_chats),
                conversation=self.conversation(rules),
                settings=self.settings(),
                tools=self.callable(),
                custom_tools=customs(self.tools),
                structure=self.structure(),
                stream=bool(self.stream),
                includes_reasoning=self.include_reasoning is not False,
                hides_special_tokens=self.skip_special_tokens,
                names=names,
            )

    def _refuse_others(self) -> None:
        if self.use_beam_search:
            raise BadRequest("use_beam_search is true; expected false here", "use_beam_search")
        if self.prompt_embeds is not None:
            reason = "expected none in a chat, whose prompt its template writes: send them to /v1/completions"
            raise BadRequest(f"prompt_embeds is given; {reason}", "prompt_embeds")

    def callable(self) -> Tools | None:
        """The tools that may be called.

        Raises:
            BadRequest: what is wrong with them.
        """
        found = functions_of(self.tools, self.tool_choice)
        return Tools.of(found, chosen(self.tool_choice), self.parallel_tool_calls, held_arguments(self.tools))


def as_chat(fields: dict[str, Any], names: Names) -> ChatRequest:
    """A chat of its fields.

    Args:
        names: what these are called where they come from.

    Raises:
        BadRequest: one of them is given, and chats do not have it.
    """
    known = ChatRequest.__struct_fields__
    for name, value in fields.items():
        if name not in known and value not in (None, [], ()):
            raise BadRequest(f"{name} is given; expected none: this server has no {name}", name)
    with written_as(names):
        return convert(
            msgspec.to_builtins({name: fields[name] for name in fields if name in known}), ChatRequest
        )
