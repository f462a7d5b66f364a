"""The rules of a grammar actor, asked as the frontend asks it and told tokens as an executor tells them, on the
packaged demo model."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pageant.actors.runtime import Actor
from pageant.models.tokenization import Tokenization
from pageant.protocol.arrays import int32, int64
from pageant.protocol.guiding import (
    CompileGrammar,
    GrammarCompiled,
    GrammarRefused,
    GuidesLost,
    GuideStep,
    OpenGuide,
    TokenMasks,
)
from pageant.protocol.roles import GRAMMAR as ROLE
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.scripts.conformance.rules import Rules, explain_role
from pageant.scripts.conformance.stage import Stage
from pageant.scripts.engine_options import DEMO_MODEL

TAKES_ROLE = "it takes the role of grammar"
COMPILES = "what it compiles it says it has compiled, and at least one kind of structured output is"
REFUSES = "what makes no sense, or is of a kind that it does not follow, is refused with a reason"
MASK = "each guide that was opened or went on gets one mask, for its next position"
GOES_ON = "a mask allows some token of the vocabulary"
KEEPS = "an output that follows the masks to an end token is what was asked for"
ENDS = "where the output is complete, an end token is allowed"
ENDLESS = "with ignore_eos an output does not end where it can go on"
REOPENS = "a guide that is opened with an output stands where that output leads"
APART = "a guide's masks do not depend on the other guides"
DRAFTS = "masks along drafts are those of a guide that takes them, and the guide stays where it is"
LEAVES = "a token that is not allowed fails the guide with a reason"
LOST = "a guide that is not known, or not at the position named, is said to be lost"
CLOSES = "a closed guide is forgotten"

EXECUTOR, GRAMMAR = "executor/0", "grammar"
TOKENS_MAX = 120
COMPILE_SECONDS = 60.0  # for the first, a process is started and the vocabulary read
SCHEMA = (
    '{"type": "object", "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}}, '
    '"required": ["n", "ok"], "additionalProperties": false}'
)
CLOSING = ('"', "}", "]", "1")
"""Texts of tokens by which an output of any kind asked for comes to its end."""
CHOICES = ("a list", "a tuple", "a list of tuples")
NONSENSE = (
    StructuredOutputsParams(regex="(unclosed"),
    StructuredOutputsParams(json='{"type": "no such type"}'),
    StructuredOutputsParams(grammar="start: nothing_of_this_name"),
)


def _is_object(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict)


def _fits_schema(text: str) -> bool:
    if not _is_object(text):
        return False
    found = json.loads(text)
    return set(found) == {"n", "ok"} and type(found["n"]) is int and isinstance(found["ok"], bool)


ASKED: tuple[tuple[StructuredOutputsParams, Callable[[str], bool]], ...] = (
    (StructuredOutputsParams(choice=CHOICES), lambda text: text in CHOICES),
    (
        StructuredOutputsParams(regex="[ab]{2,5}(,[0-9]{1,3}){2}"),
        lambda text: re.fullmatch("[ab]{2,5}(,[0-9]{1,3}){2}", text) is not None,
    ),
    (StructuredOutputsParams(json=SCHEMA), _fits_schema),
    (StructuredOutputsParams(json_object=True), _is_object),
    (
        StructuredOutputsParams(grammar='start: "[" (NUMBER ("," NUMBER)*)? "]"\nNUMBER: /[0-9]{1,2}/'),
        lambda text: re.fullmatch(r"\[([0-9]{1,2}(,[0-9]{1,2})*)?\]", text) is not None,
    ),
)
"""What is asked of a grammar, and whether a text is that: judged by other means than a grammar's."""


def check_grammar(cls: type[Actor], **options: Any) -> tuple[str, ...]:
    """Hold a grammar actor against the rules; return those that it kept.

    Its Options have the default one's `model`, `vocab_size` and `eos_token_ids`; the demo model's are given.

    Raises:
        BrokenRule: names the rule, and what happened.
    """
    rules = Rules()
    rules.must(TAKES_ROLE, getattr(cls, "role", None) is ROLE, explain_role(cls, ROLE))
    asyncio.run(_Trial(cls, options, rules).run())
    return rules.kept


class _Trial:
    """An executor's guides, numbered from 1, each used once."""

    def __init__(self, cls: type[Actor], options: dict[str, Any], rules: Rules) -> None:
        config = json.loads((DEMO_MODEL / "config.json").read_text())
        ends = config["eos_token_id"]
        self._ends = tuple(ends if isinstance(ends, list) else [ends])
        self._size = int(config["vocab_size"])
        given = {"model": str(DEMO_MODEL), "vocab_size": self._size, "eos_token_ids": self._ends}
        self._cls, self._options, self._rules = cls, {**given, **options}, rules
        self._tokenization = Tokenization.from_checkpoint(DEMO_MODEL)
        self._guide = 0
        self._chance = random.Random(7)

    async def run(self) -> None:
        async with Stage() as self._stage:
            await self._stage.enter(EXECUTOR)
            await self._stage.enter(GRAMMAR, self._cls(self._cls.Options(**self._options)))
            followed = await self._compile()
            for asked, is_right in followed:
                said = await self._follow(asked, is_right)
                await self._reopen(asked, said)
                await self._leave(asked)
                await self._draft(asked, said)
            await self._apart([asked for asked, _ in followed])
            await self._lose(followed[0][0])

    async def _compile(self) -> list[tuple[StructuredOutputsParams, Callable[[str], bool]]]:
        """Return what this grammar follows."""
        followed = []
        for asked, is_right in ASKED:
            answer = await self._stage.ask(GRAMMAR, CompileGrammar(structured_outputs=asked), COMPILE_SECONDS)
            has_reason = isinstance(answer, GrammarRefused) and bool(answer.reason)
            is_compiled = isinstance(answer, GrammarCompiled)
            self._rules.must(
                REFUSES, is_compiled or has_reason, f"{asked.kind} was answered by {answer!r:.200}"
            )
            if is_compiled:
                followed.append((asked, is_right))
        self._rules.must(COMPILES, bool(followed), "it refused every kind")
        for nonsense in NONSENSE:
            answer = await self._stage.ask(
                GRAMMAR, CompileGrammar(structured_outputs=nonsense), COMPILE_SECONDS
            )
            has_reason = isinstance(answer, GrammarRefused) and bool(answer.reason)
            self._rules.must(REFUSES, has_reason, f"{nonsense!r:.120} was answered by {answer!r:.200}")
        return followed

    def _open(
        self, asked: StructuredOutputsParams, said: list[int], *, ignore_eos: bool = False
    ) -> OpenGuide:
        self._guide += 1
        return OpenGuide(
            guide=self._guide,
            structured_outputs=asked,
            position=10 + len(said),
            token_ids=int32(said),
            ignore_eos=ignore_eos,
        )

    async def _tell(self, kind: type[Any], rule: str, **columns: Any) -> Any:
        """One step of the executor, and the one answer that it calls for."""
        self._stage.tell(EXECUTOR, GRAMMAR, GuideStep(epoch=1, **columns))
        return await self._stage.expect(EXECUTOR, kind, rule)

    async def _masks(
        self, expected: list[tuple[int, int]], **columns: Any
    ) -> dict[int, np.ndarray[Any, Any]]:
        """Return which tokens each guide [(number, position)] may have next: bool [vocabulary], by number."""
        answer: TokenMasks = await self._tell(TokenMasks, MASK, **columns)
        self._rules.must(MASK, not answer.failed and answer.epoch == 1, f"it answered {answer!r:.300}")
        found = list(zip(answer.guides.tolist(), answer.positions.tolist(), strict=True))
        self._rules.must(MASK, sorted(found) == sorted(expected), f"masks of {found}; expected {expected}")
        bits = np.unpackbits(np.ascontiguousarray(answer.bits).view(np.uint8), axis=1, bitorder="little")
        masks = {guide: row[: self._size].astype(bool) for (guide, _), row in zip(found, bits, strict=True)}
        for mask in masks.values():
            self._rules.must(GOES_ON, bool(mask.any()), "it allows none")
        return masks

    async def _begin(
        self, asked: StructuredOutputsParams, said: list[int], *, ignore_eos: bool = False
    ) -> tuple[int, np.ndarray[Any, Any]]:
        opened = self._open(asked, said, ignore_eos=ignore_eos)
        masks = await self._masks([(opened.guide, opened.position)], opened=(opened,))
        return opened.guide, masks[opened.guide]

    async def _take(self, guide: int, position: int, token: int) -> np.ndarray[Any, Any]:
        taken = {"guides": int64([guide]), "positions": int64([position]), "token_ids": int32([token])}
        return (await self._masks([(guide, position + 1)], **taken))[guide]

    def _draw(self, mask: np.ndarray[Any, Any], said: list[int]) -> int:
        """An end token where one is allowed and enough has been said, else any other."""
        allowed = np.flatnonzero(mask).tolist()
        ends = [token for token in allowed if token in self._ends]
        others = [token for token in allowed if token not in self._ends]
        if ends and (not others or len(said) > 12 or self._chance.random() < 0.3):
            return int(ends[0])
        if len(said) > 12:
            closing = [token for token in others if self._tokenization.decode([token]) in CLOSING]
            others = closing or others
        return int(self._chance.choice(others))

    async def _follow(self, asked: StructuredOutputsParams, is_right: Callable[[str], bool]) -> list[int]:
        """Go along some outputs to their ends; return the tokens of the last."""
        ended, said = 0, list[int]()
        for _ in range(6):
            guide, mask = await self._begin(asked, [])
            said = []
            while len(said) < TOKENS_MAX:
                token = self._draw(mask, said)
                if token in self._ends:
                    text = self._tokenization.decode(said)
                    self._rules.must(KEEPS, is_right(text), f"{asked.kind} gave {text!r}")
                    ended += 1
                    break
                said.append(token)
                mask = await self._take(guide, 9 + len(said), token)
            self._stage.tell(EXECUTOR, GRAMMAR, GuideStep(epoch=1, closed=int64([guide])))
        self._rules.must(ENDS, ended > 0, f"{asked.kind}: no output ended within {TOKENS_MAX} tokens")
        return said

    async def _reopen(self, asked: StructuredOutputsParams, said: list[int]) -> None:
        guide, walked = await self._begin(asked, [])
        for place, token in enumerate(said):
            _, opened = await self._begin(asked, said[:place])
            self._rules.must(REOPENS, bool((opened == walked).all()), f"{asked.kind}, after {place} tokens")
            walked = await self._take(guide, 10 + place, token)
        _, endless = await self._begin(asked, said, ignore_eos=True)
        others = walked.copy()
        others[list(self._ends)] = False
        ends = bool(endless[list(self._ends)].any())
        self._rules.must(ENDLESS, not (ends and others.any()), f"{asked.kind}, after {len(said)} tokens")

    async def _leave(self, asked: StructuredOutputsParams) -> None:
        guide, mask = await self._begin(asked, [])
        wrong = int(np.flatnonzero(~mask)[0]) if not mask.all() else None
        if wrong is None:
            return
        taken = {"guides": int64([guide]), "positions": int64([10]), "token_ids": int32([wrong])}
        answer: TokenMasks = await self._tell(TokenMasks, LEAVES, **taken)
        has_reason = bool(answer.failed.get(guide))
        self._rules.must(LEAVES, has_reason, f"{asked.kind}: token {wrong} was answered by {answer!r:.200}")

    async def _draft(self, asked: StructuredOutputsParams, said: list[int]) -> None:
        drafts = said[:3]
        guide, first = await self._begin(asked, [])
        answer: TokenMasks = await self._tell(
            *(TokenMasks, DRAFTS),
            drafting=int64([guide]),
            draft_positions=int64([10]),
            draft_counts=int32([len(drafts)]),
            draft_ids=int32(drafts),
        )
        places = list(zip(answer.positions.tolist(), answer.ahead.tolist(), strict=True))
        expected = [(10 + ahead, ahead) for ahead in range(len(drafts) + 1)]
        self._rules.must(DRAFTS, places == expected, f"masks at {places}; expected {expected}")
        bits = np.unpackbits(np.ascontiguousarray(answer.bits).view(np.uint8), axis=1, bitorder="little")
        walked = first
        for ahead, token in enumerate([*drafts, None]):
            is_same = bool((bits[ahead, : self._size].astype(bool) == walked).all())
            self._rules.must(DRAFTS, is_same, f"{asked.kind}, after {ahead} drafts")
            if token is not None:
                walked = await self._take(guide, 10 + ahead, token)

    async def _apart(self, followed: list[StructuredOutputsParams]) -> None:
        """All at once, twice each: masks are those of a guide alone."""
        alone = [(await self._begin(asked, []))[1] for asked in followed]
        opened = [self._open(asked, []) for asked in (*followed, *reversed(followed))]
        masks = await self._masks([(one.guide, 10) for one in opened], opened=tuple(opened))
        for one, right in zip(opened, [*alone, *reversed(alone)], strict=True):
            is_same = bool((masks[one.guide] == right).all())
            self._rules.must(APART, is_same, f"{one.structured_outputs.kind} beside others")

    async def _lose(self, asked: StructuredOutputsParams) -> None:
        guide, mask = await self._begin(asked, [])
        token = int(np.flatnonzero(mask)[0])
        for number, position in ((guide + 1000, 10), (guide, 12)):
            lost: GuidesLost = await self._tell(
                *(GuidesLost, LOST),
                guides=int64([number]),
                positions=int64([position]),
                token_ids=int32([token]),
            )
            self._rules.must(LOST, lost.guides.tolist() == [number], f"guide {number}: it answered {lost!r}")
        taken = {"guides": int64([guide]), "positions": int64([10]), "token_ids": int32([token])}
        gone: GuidesLost = await self._tell(GuidesLost, CLOSES, closed=int64([guide]), **taken)
        self._rules.must(CLOSES, gone.guides.tolist() == [guide], f"it answered {gone!r}")
        await self._stage.quiet(EXECUTOR, MASK)
