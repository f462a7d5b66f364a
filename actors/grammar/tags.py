"""Structural tags: texts with parts that have a form, such as calls of tools between what else a model says.

Their language is the one that users of vLLM know: a tree of formats, or in the older form `structures` and `triggers`.
They become a grammar in Lark's form. A token that stands for a whole mark, such as `<tool_call>`, is named by its id:
nothing else is that token, however it is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pageant.actors.grammar.bounds import check_rules
from pageant.actors.grammar.errors import GrammarError

FORMATS_MAX = 4096
TEXT = "TEXT: /(.|\\n)*/"


class Literals:
    """Texts in grammars. `tokens` are those that a tokenizer has for whole marks, by their texts."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = dict(tokens)
        longest_first = sorted(filter(None, tokens), key=len, reverse=True)
        self._marks = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None

    def parts(self, text: str) -> list[str]:
        """A text's parts, each as a grammar has it: tokens, and what is between."""
        pieces = [text] if self._marks is None else self._marks.split(text)
        return [
            f"<[{self._tokens[piece]}]>" if piece in self._tokens else json.dumps(piece, ensure_ascii=False)
            for piece in pieces
            if piece
        ]

    def __call__(self, text: str) -> str:
        """The whole of it."""
        return " ".join(self.parts(text)) or '""'

    def up_to(self, rule: str, text: str) -> tuple[str, str]:
        """Any text, and then this one for the first time: an expression, and the rule that it needs, if any."""
        first, *others = self.parts(text)
        if first.startswith("<["):
            return " ".join(["TEXT", first, *others]), ""
        return " ".join([rule, *others]), f"{rule}[lazy]: TEXT {first}"


class TagGrammar:
    """The grammar of one tree.

    Args:
        schema: what a JSON schema is in a grammar.
    """

    def __init__(self, literals: Literals, schema: Callable[[Any], str]) -> None:
        self._literals, self._schema = literals, schema
        self._rules = [TEXT]
        self._others: list[dict[str, str]] = []  # grammars that are named in rules
        self._count = 0

    def source(self, tags: Any) -> str:
        """Return the tag in llguidance's own form.

        Raises:
            GrammarError: the tree has not this form.
        """
        try:
            whole = self._format(tags["format"] if "format" in tags else _older(tags))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, GrammarError):
                raise
            raise GrammarError(
                f"structural_tag has not the form that it should have: {error!r:.80}"
            ) from None
        lark = "\n".join([f"start: {whole}", *self._rules, ""])
        return json.dumps({"grammars": [{"name": "tags", "lark_grammar": lark}, *self._others]})

    def _format(self, tree: Any) -> str:
        """An expression for a tree."""
        kind = tree["type"]
        make = _KINDS.get(kind)
        if make is None:
            raise GrammarError(
                f"structural_tag has a format {kind!r:.80}; expected one of {', '.join(_KINDS)}"
            )
        return make(self, tree)

    def _rule(self, expression: str) -> str:
        self._count += 1
        if self._count > FORMATS_MAX:
            raise GrammarError(f"structural_tag has more than {FORMATS_MAX} parts")
        self._rules.append(f"r{self._count}: {expression}")
        return f"r{self._count}"

    def _either(self, expressions: Sequence[str]) -> str:
        if not expressions:
            raise GrammarError("structural_tag has a choice between nothing")
        return expressions[0] if len(expressions) == 1 else self._rule(" | ".join(expressions))

    def _const_string(self, tree: Any) -> str:
        return self._literals(_text(tree["value"]))

    def _json_schema(self, tree: Any) -> str:
        return self._rule(self._schema(tree["json_schema"]))

    def _any_text(self, tree: Any) -> str:
        return "TEXT"

    def _regex(self, tree: Any) -> str:
        from llguidance import LLMatcher

        return self._named(LLMatcher.grammar_from_regex(_text(tree["pattern"])))

    def _grammar(self, tree: Any) -> str:
        from llguidance import grammar_from

        check_rules(_text(tree["grammar"]))
        return self._named(grammar_from("grammar", tree["grammar"]))

    def _named(self, source: str) -> str:
        name = f"g{len(self._others)}"
        grammars = json.loads(source)["grammars"] if source.lstrip().startswith("{") else None
        inner = grammars[0] if grammars else {"lark_grammar": source}
        self._others.append({**inner, "name": name})
        return f"@{name}"

    def _sequence(self, tree: Any) -> str:
        return self._rule(" ".join(self._format(element) for element in tree["elements"]) or '""')

    def _or(self, tree: Any) -> str:
        return self._either([self._format(element) for element in tree["elements"]])

    def _tag(self, tree: Any) -> str:
        return self._rule(f"{self._literals(_text(tree['begin']))} {self._rest(tree)}")

    def _rest(self, tree: Any) -> str:
        """Return what comes after a tag's beginning."""
        ends = tree["end"] if isinstance(tree["end"], list) else [tree["end"]]
        if tree["content"]["type"] == "any_text" and len(ends) == 1 and ends[0]:
            self._count += 1
            expression, rule = self._literals.up_to(f"u{self._count}", _text(ends[0]))
            self._rules += [rule] * bool(rule)
            return expression
        end = self._either([self._literals(_text(end)) for end in ends])
        return f"{self._format(tree['content'])} {end}"

    def _triggered_tags(self, tree: Any) -> str:
        by_trigger: dict[str, list[str]] = {}
        for tag in tree["tags"]:
            begin = _text(tag["begin"])
            trigger = next((one for one in tree["triggers"] if one and begin.startswith(one)), None)
            if trigger is None:
                raise GrammarError(f"structural_tag: no trigger begins {begin!r:.80}")
            rest = f"{self._literals(begin[len(trigger) :])} {self._rest(tag)}"
            by_trigger.setdefault(trigger, []).append(rest)
        options = []
        for trigger, rests in by_trigger.items():
            self._count += 1
            expression, rule = self._literals.up_to(f"u{self._count}", trigger)
            self._rules += [rule] * bool(rule)
            options.append(f"{expression} {self._either(rests)}")
        one = self._either(options)
        if tree.get("stop_after_first"):
            return self._rule(one if tree.get("at_least_one") else f"{one} | TEXT")
        return self._rule(f"({one}){'+' if tree.get('at_least_one') else '*'} TEXT")

    def _tags_with_separator(self, tree: Any) -> str:
        one = self._either([self._format(tag) for tag in tree["tags"]])
        more = "" if tree.get("stop_after_first") else f"({self._literals(_text(tree['separator']))} {one})*"
        return self._rule(f"{one} {more}" if tree.get("at_least_one") else f"({one} {more})?")


_KINDS: dict[str, Callable[[TagGrammar, Any], str]] = {
    "const_string": TagGrammar._const_string,
    "json_schema": TagGrammar._json_schema,
    "any_text": TagGrammar._any_text,
    "regex": TagGrammar._regex,
    "grammar": TagGrammar._grammar,
    "sequence": TagGrammar._sequence,
    "or": TagGrammar._or,
    "tag": TagGrammar._tag,
    "triggered_tags": TagGrammar._triggered_tags,
    "tags_with_separator": TagGrammar._tags_with_separator,
}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise GrammarError(f"structural_tag: found {value!r:.80}; expected a text")
    return value


def _older(tags: Any) -> dict[str, Any]:
    """`{"structures": [{"begin", "schema", "end"}], "triggers": [...]}` as a tree."""
    structures = [
        {
            "begin": one["begin"],
            "content": {"type": "json_schema", "json_schema": one["schema"]},
            "end": one["end"],
        }
        for one in tags["structures"]
    ]
    if not structures:
        raise GrammarError("structural_tag has no structures")
    return {"type": "triggered_tags", "triggers": tags["triggers"], "tags": structures}
