"""Constraints on a request's output. Part of `SamplingParams`."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from pageant.protocol.checks import check_strings
from pageant.protocol.errors import BadRequest
from pageant.protocol.parameters import Parameters

# Characters of a schema, an expression or a grammar.
SOURCE_CHARACTERS_MAX = 262_144
CHOICES_MAX = 4096
CHOICE_LENGTH_MAX = 1024

PARAMETER = "structured_outputs"
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""Fields of `StructuredOutputsParams` of which exactly one is given."""
_TEXTS = ("json", "regex", "grammar", "structural_tag")


class StructuredOutputsParams(Parameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A constraint on the whole output, with the names and meanings that users of vLLM know: one of the first
    six.

    A mapping is taken for a text of JSON, and a list for a tuple.

    Attributes:
        json: the output is a JSON value that is valid by this schema.
        regex: the output matches the whole expression, which has no look-around and no back references.
        choice: the output is one of these texts.
        grammar: the output is a text of this context-free grammar, in Lark's form or in GBNF.
        json_object: the output is a JSON object of any form.
        structural_tag: a tree of formats, as xgrammar has them; or any text, with one of the `structures` wherever one
            of the `triggers`, which begins it, has come.
        disable_any_whitespace: no blanks between the parts of JSON. Otherwise there may be one blank, or a new
            line with its indentation.
        disable_additional_properties: objects have only the properties that the schema names.
        whitespace_pattern: an expression for the text between the parts of JSON, instead.
        reasoning_end: the constraint begins after this text has come; before, the output is free.
        reasoning_begin: if the output does not begin with this text, the constraint holds from the start.

    Raises:
        BadRequest: none or several of the first six are given, or one is out of range. Whether a constraint makes
            sense is found when it is compiled.
    """

    json: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    reasoning_end: str | None = None
    reasoning_begin: str | None = None

    def __post_init__(self) -> None:
        for name in ("json", "structural_tag"):
            if isinstance(getattr(self, name), dict):
                msgspec.structs.force_setattr(self, name, _written(name, getattr(self, name)))
        if isinstance(self.choice, list):
            msgspec.structs.force_setattr(self, "choice", tuple(self.choice))
        if self.json_object is False:
            msgspec.structs.force_setattr(self, "json_object", None)
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise BadRequest(f"structured_outputs has {found}; expected one of {', '.join(KINDS)}", PARAMETER)
        for name in (*_TEXTS, "whitespace_pattern", "reasoning_end", "reasoning_begin"):
            _check_text(name, getattr(self, name))
        if self.choice is not None:
            if not self.choice:
                raise _wrong("choice", "is empty; expected at least one text")
            check_strings("structured_outputs.choice", self.choice, CHOICES_MAX, CHOICE_LENGTH_MAX)
        if self.reasoning_begin is not None and self.reasoning_end is None:
            raise _wrong("reasoning_begin", "needs a reasoning_end")
        for name in ("json_object", "disable_any_whitespace", "disable_additional_properties"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise _wrong(name, f"is {value!r:.80}; expected true or false")

    @classmethod
    def of(cls, fields: dict[str, Any]) -> StructuredOutputsParams:
        """Build the parameters from a mapping of their fields.

        Raises:
            BadRequest: see the class; or a field is unknown.
        """
        for name in fields:
            if name not in cls.__struct_fields__:
                known = ", ".join(cls.__struct_fields__)
                raise BadRequest(f"structured_outputs has {name!r:.80}; expected {known}", PARAMETER)
        return cls(**fields)

    def after(self, prompt: str) -> StructuredOutputsParams:
        """Return these parameters for an output that follows a prompt, in which reasoning may have begun
        already, or have ended.
        """
        text = prompt.rstrip()
        if self.reasoning_end is not None and text.endswith(self.reasoning_end):
            return msgspec.structs.replace(self, reasoning_begin=None, reasoning_end=None)
        if self.reasoning_begin is not None and text.endswith(self.reasoning_begin):
            return msgspec.structs.replace(self, reasoning_begin=None)
        return self

    @property
    def kind(self) -> str:
        """Return the name of the one field of `KINDS` that is given."""
        return next(name for name in KINDS if getattr(self, name) is not None)


def _wrong(name: str, reason: str) -> BadRequest:
    """Return the error of a field; `reason` goes on from its name."""
    place = f"{PARAMETER}.{name}"
    return BadRequest(f"{place} {reason}", PARAMETER, place)


def _written(name: str, value: dict[str, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _wrong(name, f"is no JSON: {error}") from None


def _check_text(name: str, text: object) -> None:
    if text is None:
        return
    if not isinstance(text, str) or not 1 <= len(text) <= SOURCE_CHARACTERS_MAX:
        found = f"has {len(text)} characters" if isinstance(text, str) else f"is a {type(text).__name__}"
        raise _wrong(name, f"{found}; expected a text of 1 to {SOURCE_CHARACTERS_MAX}")
