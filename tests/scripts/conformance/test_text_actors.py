"""The suites of drafters, tokenizers and detokenizers bite: each planted fault is named by the rule that it breaks."""

from __future__ import annotations

import msgspec
import pytest

from pageant.actors.detokenizer import Detokenizer
from pageant.actors.drafter.base import SequenceDrafter
from pageant.actors.drafter.ngram import NgramDrafter
from pageant.actors.runtime import Actor, receives
from pageant.actors.tokenizer import Tokenizer
from pageant.protocol.arrays import int32
from pageant.protocol.outputs import Stopped
from pageant.protocol.serving import OutputBatch
from pageant.protocol.tokenizing import Detokenize, Detokenized, NotTokenized, Tokenize, Tokenized
from pageant.scripts.conformance import detokenizer as detokenizer_rules
from pageant.scripts.conformance import drafter as drafter_rules
from pageant.scripts.conformance import run
from pageant.scripts.conformance import tokenizer as tokenizer_rules
from pageant.scripts.conformance.detokenizer import check_detokenizer
from pageant.scripts.conformance.drafter import check_drafter
from pageant.scripts.conformance.rules import BrokenRule
from pageant.scripts.conformance.scheduler import check_scheduler
from pageant.scripts.conformance.tokenizer import check_tokenizer

replace = msgspec.structs.replace


class Last(SequenceDrafter):
    """Repeats the last token."""

    def guess(self, token_ids, wanted):
        return [token_ids[-1]] * wanted


class TooMany(Last):
    def guess(self, token_ids, wanted):
        return [token_ids[-1]] * (wanted + 1)


class Lists(Last):
    def propose(self, *arguments):
        return [one.tolist() for one in super().propose(*arguments)]


class Shared(Last):
    """Guesses the number of sequences that it follows."""

    def guess(self, token_ids, wanted):
        return [len(self._tokens)] * wanted


class Keeps(Last):
    def close(self, serial): ...

    def open(self, serial, token_ids):
        if serial not in self._tokens:
            super().open(serial, token_ids)


class Forgetful(Last):
    """Looks at no new tokens."""

    def propose(self, serials, counts, token_ids, wanted):
        return super().propose(serials, 0 * counts, token_ids[:0], wanted)


def test_drafters_that_keep_the_rules_pass():
    for cls in (Last, NgramDrafter):
        assert set(check_drafter(cls)) >= {drafter_rules.ALONE, drafter_rules.SPLIT, drafter_rules.FORGETS}


@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (object, drafter_rules.MADE),
        (TooMany, drafter_rules.WANTED),
        (Lists, drafter_rules.SHAPE),
        (Shared, drafter_rules.ALONE),
        (Forgetful, drafter_rules.SPLIT),
        (Keeps, drafter_rules.FORGETS),
    ],
)
def test_a_drafters_fault_is_named(cls, rule):
    with pytest.raises(BrokenRule) as broken:
        check_drafter(cls)
    assert broken.value.rule == rule


class Loud(Detokenizer):
    def rewrite(self, request, text, last):
        return text.upper()


class ByPiece(Detokenizer):
    """Marks where pieces end, so that its texts depend on steps."""

    def rewrite(self, request, text, last):
        return text + "|"


class Changing(Detokenizer):
    def tell(self, address, message):
        for one in self.change(message):
            super().tell(address, one)

    def change(self, message):
        return [message]


class Deaf(Changing):
    def change(self, message):
        return [] if isinstance(message, Stopped) else [message]


class Endless(Changing):
    def change(self, message):
        return [replace(message, finished={})] if isinstance(message, OutputBatch) else [message]


class Gappy(Changing):
    def change(self, message):
        return (
            [replace(message, number=2 * message.number)] if isinstance(message, OutputBatch) else [message]
        )


class Wrong(Changing):
    def change(self, message):
        if isinstance(message, OutputBatch):
            message = replace(message, token_ids=int32((message.token_ids + 1).tolist()))
        return [message]


class NoRole(Actor):
    """An actor that stands in for nobody."""


def test_detokenizers_that_keep_the_rules_pass():
    for cls in (Detokenizer, Loud):
        kept = check_detokenizer(cls)
        assert {detokenizer_rules.STOPS, detokenizer_rules.CHUNKS, detokenizer_rules.ACKNOWLEDGED} <= set(
            kept
        )


@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (NoRole, detokenizer_rules.TAKES_ROLE),
        (ByPiece, detokenizer_rules.CHUNKS),
        (Deaf, detokenizer_rules.STOPS),
        (Endless, detokenizer_rules.ENDS),
        (Gappy, detokenizer_rules.NUMBERED),
        (Wrong, detokenizer_rules.TOKENS),
    ],
)
def test_a_detokenizers_fault_is_named(cls, rule):
    with pytest.raises(BrokenRule) as broken:
        check_detokenizer(cls)
    assert broken.value.rule == rule


class Moody(Tokenizer):
    """Says something else the second time."""

    calls = 0

    def prepare(self, text):
        self.calls += 1
        return text + " " * (self.calls > 5)


class Beyond(Tokenizer):
    @receives(concurrent=True)
    async def tokenize(self, request: Tokenize) -> Tokenized | NotTokenized:
        found = await super().tokenize(request)
        return replace(found, token_ids=int32((found.token_ids + 10_000).tolist()))


class Greedy(Tokenizer):
    @receives(concurrent=True)
    async def tokenize(self, request: Tokenize) -> Tokenized | NotTokenized:
        return await super().tokenize(replace(request, tokens_max=None))


class Mute(Tokenizer):
    @receives(concurrent=True)
    async def detokenize(self, request: Detokenize) -> Detokenized:
        return Detokenized(texts=())


def test_the_tokenizer_keeps_the_rules():
    assert len(check_tokenizer(Tokenizer)) == 6


@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (NoRole, tokenizer_rules.TAKES_ROLE),
        (Moody, tokenizer_rules.SAME),
        (Beyond, tokenizer_rules.IDS),
        (Greedy, tokenizer_rules.REFUSED),
        (Mute, tokenizer_rules.BACK),
    ],
)
def test_a_tokenizers_fault_is_named(cls, rule):
    with pytest.raises(BrokenRule) as broken:
        check_tokenizer(cls)
    assert broken.value.rule == rule


def test_a_class_without_a_role_is_told_how_to_take_one():
    with pytest.raises(BrokenRule, match="NoRole has no role; write `role = SCHEDULER`"):
        check_scheduler(NoRole)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("detokenizer", "hidden_numbers:HiddenNumbers"), ("tokenizer", "plain_quotes:PlainQuotes")],
)
def test_the_examples_keep_the_rules(kind, name, monkeypatch):
    import pageant

    monkeypatch.syspath_prepend(f"{pageant.__path__[0]}/docs/examples")
    report = run(kind, name)
    assert report.passed, report
