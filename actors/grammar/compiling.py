"""Compiling of what a request asks for into a grammar that can be followed token by token."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pageant.actors.grammar.bounds import check_depth, check_integers, check_references, check_rules
from pageant.actors.grammar.errors import GrammarError
from pageant.actors.grammar.surplus import within
from pageant.actors.grammar.tags import TEXT, Literals, TagGrammar
from pageant.models.tokenization import Tokenization
from pageant.protocol.json_schemas import prepare
from pageant.protocol.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLMatcher

WHITESPACE = r"( |\n {0,32})?"
"""Between the parts of JSON, unless a request says otherwise. Without a bound, a model may never leave it."""
REASON_LENGTH_MAX = 500
# The costs of one mask, and what a lexer may hold (1 to 2 kB a state); llguidance's own are five times as large.
LEXER_STATES_MAX = 50_000
STEP_FUEL = 100_000
START_FUEL = 500_000
_PHRASES = {
    "NoExtensionBias": "no text that ends follows it",
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf": (
        "oneOf has options that a value could follow two of; expected anyOf"
    ),
}
"""What llguidance says in terms of its own options and states, and what it means."""
WALK_TOKENS = 4  # that each grammar is followed for when it is compiled


class Compiler:
    """Compiles for one vocabulary. May be used by several threads.

    Args:
        end_tokens: what is drawn where the output may end, and where nothing else may follow.

    Raises:
        GrammarError: no text can be put together from this tokenizer's tokens, or the model has no end token.
    """

    def __init__(self, tokenization: Tokenization, vocab_size: int, end_tokens: Sequence[int]) -> None:
        from llguidance import LLParserLimits, LLTokenizer

        if not end_tokens:
            raise GrammarError("structured output needs a model that has an end token")
        try:
            self._tokenizer = LLTokenizer(
                within(tokenization.to_json(), vocab_size), n_vocab=vocab_size, eos_token=list(end_tokens)
            )
        except ValueError as error:
            raise GrammarError(f"structured output cannot be had with this tokenizer: {error}") from None
        added = tokenization.added_tokens.items()
        self._literals = Literals({text: token for text, token in added if token < vocab_size})
        self._ends = list(end_tokens)
        self._limits = LLParserLimits(
            max_lexer_states=LEXER_STATES_MAX,
            step_lexer_fuel=STEP_FUEL,
            initial_lexer_fuel=START_FUEL,
            verbose_errors=False,
        )

    @classmethod
    def from_checkpoint(cls, path: Path, vocab_size: int, end_tokens: Sequence[int]) -> Compiler:
        """Make a compiler for a checkpoint's tokenizer. Raises what its reading raises, too."""
        return cls(Tokenization.from_checkpoint(path), vocab_size, end_tokens)

    def compile(self, asked: StructuredOutputsParams) -> LLMatcher:
        """A matcher at the beginning, to be copied; its first mask is computed, so that it is cheap from then on.

        Raises:
            GrammarError: it makes no sense, needs what is not supported, or costs too much.
        """
        from llguidance import LLMatcher

        try:
            matcher = LLMatcher(
                self._tokenizer, _source(asked, self._literals), log_level=0, limits=self._limits
            )
            if not matcher.is_error():
                matcher.compute_bitmask()
                self._walk(matcher.deep_copy())
        except GrammarError:
            raise
        except RecursionError:
            raise GrammarError("it is nested too deeply") from None
        except ValueError as error:
            raise GrammarError(_first_line(str(error))) from None
        if matcher.is_error():
            raise GrammarError(_first_line(matcher.get_error()))
        return matcher

    def _walk(self, matcher: LLMatcher) -> None:
        """Follow a grammar for a few tokens, since limits of its parser may be met only then.

        Raises:
            GrammarError: it cannot be followed.
        """
        for _ in range(WALK_TOKENS):
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            bits[self._ends] = 0
            token = int(bits.argmax())
            if matcher.is_error() or not bits[token]:
                break
            matcher.consume_token(token)
        if matcher.is_error():
            raise GrammarError(_first_line(matcher.get_error()))


def _first_line(text: str) -> str:
    """Return what went wrong, without the state that it left."""
    text = text.split("\n<")[0].strip()
    for theirs, ours in _PHRASES.items():
        text = text.replace(theirs, ours)
    return text[:REASON_LENGTH_MAX] or "it cannot be followed"


def _source(asked: StructuredOutputsParams, literals: Literals) -> str:
    """Return the constraint in llguidance's own form."""
    source = _answer(asked, literals)
    if asked.reasoning_end is None:
        return source
    is_list = source.lstrip().startswith("{")
    grammars = json.loads(source)["grammars"] if is_list else [{"lark_grammar": source}]
    grammars[0]["name"] = "answer"
    thought, rule = literals.up_to("thought", asked.reasoning_end)
    if asked.reasoning_begin is not None:
        thought = f"({literals(asked.reasoning_begin)} {thought})?"
    lark = "\n".join([f"start: {thought} BLANK @answer", rule, TEXT, "BLANK: /[ \\n]{0,8}/", ""])
    return json.dumps({"grammars": [{"name": "reasoning", "lark_grammar": lark}, *grammars]})


def _answer(asked: StructuredOutputsParams, literals: Literals) -> str:
    from llguidance import LLMatcher, grammar_from

    if asked.json is not None:
        return LLMatcher.grammar_from_json_schema(_schema("json", asked.json, asked))
    if asked.json_object:
        return LLMatcher.grammar_from_json_schema(_schema("json", '{"type": "object"}', asked))
    if asked.regex is not None:
        return LLMatcher.grammar_from_regex(asked.regex)
    if asked.choice is not None:
        return grammar_from("choice", json.dumps(asked.choice))
    if asked.grammar is not None:
        check_rules(asked.grammar)
        return grammar_from("grammar", asked.grammar)
    tags = _loaded("structural_tag", asked.structural_tag)
    check_depth(tags)
    return TagGrammar(literals, lambda schema: f"%json {_closed(schema, asked)}").source(tags)


def _schema(name: str, text: str | None, asked: StructuredOutputsParams) -> str:
    schema = _loaded(name, text)
    if not isinstance(schema, dict):
        raise GrammarError(f"the schema is a {type(schema).__name__}; expected an object")
    check_depth(schema)
    return _closed(schema, asked)


def _closed(schema: Any, asked: StructuredOutputsParams) -> str:
    """Return a schema as the compiler takes it, with objects that are closed if asked. Mutates `schema`."""
    if asked.disable_additional_properties:
        _close_objects(schema)
    return _compilable(schema, asked)


def _compilable(schema: Any, asked: StructuredOutputsParams) -> str:
    """Return a schema as the compiler takes it, which says what may stand between its values' parts.

    Its depth, or that of the structural tag that it is in, was checked before. Mutates `schema`.
    """
    if not isinstance(schema, dict):
        raise GrammarError(f"the schema is a {type(schema).__name__}; expected an object")
    check_references(schema)
    check_integers(schema)
    prepare(schema)
    blanks: dict[str, Any] = {"whitespace_pattern": asked.whitespace_pattern or WHITESPACE}
    if asked.disable_any_whitespace:
        blanks = {"whitespace_flexible": False}
    return json.dumps({**schema, "x-guidance": blanks})


def _loaded(name: str, text: str | None) -> Any:
    assert text is not None, "it is given"
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise GrammarError(f"{name} is no JSON: {error}") from None


def _finite(text: str) -> float:
    """Return a number of a schema.

    Raises:
        GrammarError: no finite double holds it.
    """
    if not math.isfinite(value := float(text)):
        raise GrammarError(f"the number {text:.80} cannot be had; expected a finite double")
    return value


def _close_objects(schema: Any) -> None:
    """Forbid more properties where a schema does not say that there may be some."""
    if isinstance(schema, list):
        for item in schema:
            _close_objects(item)
    elif isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and "patternProperties" not in schema:
            schema.setdefault("additionalProperties", False)
        for item in schema.values():
            _close_objects(item)
