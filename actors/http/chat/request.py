"""The request for a chat, in no client's shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pageant.actors.frontend.prompts import RequestSettings
from pageant.actors.http.chat.parsing import parser, shows_special
from pageant.actors.http.chat.structure import Structure, in_answer, with_reasoning
from pageant.actors.http.chat.tools import Tools
from pageant.actors.http.naming import Names
from pageant.actors.parsers.base import OutputParser
from pageant.actors.parsers.formats import Formats
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.tokenizing import TokenizeChat

NO_STRUCTURE = Structure()


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A conversation that a model is to go on with. Every API's chats become this."""

    conversation: TokenizeChat
    """The messages and tools, as the tokenizer takes them."""
    params: SamplingParams
    """Sampling parameters, but for what `structure` and `tools` add."""
    settings: RequestSettings
    """Settings besides the prompt and the parameters."""
    tools: Tools | None = None
    """The tools that may be called; None if none may."""
    custom_tools: frozenset[str] = frozenset()
    """Names of the tools that are called with a text instead of JSON."""
    structure: Structure = NO_STRUCTURE
    """The constraint on the answer's text."""
    stream: bool = False
    """The client reads the answer while it is written."""
    includes_reasoning: bool = True
    """The client is told what the model thinks."""
    hides_special_tokens: bool | None = None
    """Special tokens have no text. None leaves it to the parameters, and shows those that the parser needs."""
    names: Names = field(default_factory=dict)
    """The client's names of parameters, by the names inside."""

    def constraint(self, formats: Formats) -> Structure:
        """Return the constraint on an answer of a model of these formats, with the calls of tools.

        Raises:
            BadRequest: a tool's parameters are no object.
        """
        structure = self.structure if self.tools is None else self.tools.structure(formats, self.structure)
        return in_answer(structure, formats) if structure is self.structure else structure

    def sampling_params(self, formats: Formats, constraint: Structure) -> SamplingParams:
        """Return the sampling parameters of its requests to a model of these formats."""
        shows = self.hides_special_tokens is None and shows_special(formats, self.tools)
        return msgspec.structs.replace(
            self.params,
            structured_outputs=with_reasoning(constraint.asked, formats),
            skip_special_tokens=False if shows else self.params.skip_special_tokens,
        )

    def parser(
        self, formats: Formats, new_call_id: Callable[[int | None], str]
    ) -> Callable[[], OutputParser] | None:
        """Return what makes a parser for each answer; None takes all of its text as content."""
        return parser(
            *(formats, self.tools, new_call_id),
            tells_reasoning=self.includes_reasoning,
            customs=self.custom_tools,
        )


def params_of(given: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    """Return the sampling parameters of a request: those that it gives, over a model's defaults.

    Raises:
        BadRequest: a value is out of range; names the parameter.
    """
    return SamplingParams(**{**msgspec.structs.asdict(defaults), **given})
