"""Guided sequences: what may follow, what has followed, and what is taken back."""

from __future__ import annotations

import numpy as np
import pytest

from pageant.actors.grammar.core import Guides, Opening
from pageant.protocol.structured_outputs import StructuredOutputsParams as Asked

ENDS = (0, 1)


@pytest.fixture
def guides(vocab_size):
    return Guides(vocab_size, ENDS, threads=2)


@pytest.fixture(scope="session")
def spell(tokenization):
    return lambda text: tokenization.encode(text, add_special_tokens=False)


def allowed(bits) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())


def masks(guides, *keys) -> list[set[int]]:
    bits, failed = guides.masks(keys)
    assert not failed
    guides.check_integrity()
    return [allowed(row) for row in bits]


def test_masks_say_what_may_follow_and_end_tokens_where_it_may_end(guides, compiler, spell):
    guides.open(Opening("short", compiler.compile(Asked(regex="ab?"))))
    guides.open(Opening("choice", compiler.compile(Asked(choice=["yes", "no"]))))
    assert masks(guides, "choice", "short") == [{*spell("yn")}, {*spell("a")}]
    guides.advance("short", spell("a"))
    assert masks(guides, "short") == [{*ENDS, *spell("b")}]
    guides.advance("short", spell("b"))
    assert masks(guides, "short", "choice") == [{*ENDS}, {*spell("yn")}]


def test_padding_of_the_vocabulary_is_never_allowed(guides, compiler, tokenization, vocab_size):
    guides.open(Opening(1, compiler.compile(Asked(regex="(.|\n)*"))))
    assert max(masks(guides, 1)[0]) < tokenization.vocab_size < vocab_size


def test_with_ignore_eos_it_ends_only_where_it_must(guides, compiler, spell):
    guides.open(Opening(1, compiler.compile(Asked(regex="a+b?")), spell("a"), ignore_eos=True))
    assert masks(guides, 1) == [{*spell("ab")}]
    guides.advance(1, spell("b"))
    assert masks(guides, 1) == [{*ENDS}]


def test_a_sequence_that_is_opened_again_with_its_output_stands_where_it_stood(guides, compiler, spell):
    grammar = compiler.compile(Asked(json={"type": "array", "items": {"type": "integer"}}))
    guides.open(Opening("first", grammar))
    for token in spell("[1, 23"):
        guides.advance("first", [token])
    guides.open(Opening("again", grammar, spell("[1, 23")))
    first, again = masks(guides, "first", "again")
    assert first == again == {*spell("0123456789,]. \neE")} & first


def test_what_does_not_fit_fails_its_own_sequence(guides, compiler, spell):
    grammar = compiler.compile(Asked(choice=["yes"]))
    guides.open(Opening("bad", grammar, spell("no")))
    guides.open(Opening("good", grammar))
    bits, failed = guides.masks(["bad", "good"])
    assert set(failed) == {0} and "left its grammar" in failed[0]
    assert allowed(bits[1]) == {*spell("y")}
    guides.advance("bad", spell("y"))  # changes nothing
    assert set(guides.masks(["bad"])[1]) == {0}


def test_a_closed_sequence_is_forgotten(guides, compiler):
    guides.open(Opening(1, compiler.compile(Asked(choice=["yes"]))))
    guides.close(1)
    guides.close(1)
    assert 1 not in guides and not len(guides)


def test_drafts_have_a_mask_for_each_place_and_leave_the_sequence_where_it_was(guides, compiler, spell):
    guides.open(Opening("a", compiler.compile(Asked(regex="abc+")), spell("a")))
    guides.open(Opening("b", compiler.compile(Asked(regex="b+c?")), spell("b"), ignore_eos=True))
    found = guides.draft_masks([("a", spell("bcx")), ("b", spell("bc"))])
    everything = {token for token in range(found["a"].shape[1] * 32)}
    along_a = [{*spell("b")}, {*spell("c")}, {*ENDS, *spell("c")}, everything]
    assert [
        allowed(row) for row in found["a"]
    ] == along_a  # after the x, which does not fit, it does not matter
    assert [allowed(row) for row in found["b"]] == [{*spell("bc")}, {*spell("bc")}, {*ENDS}]
    assert masks(guides, "a", "b") == [{*spell("b")}, {*spell("bc")}]


def test_drafts_that_would_cost_too_much_fail_nothing(guides, compiler, spell):
    grammar = compiler.compile(Asked(grammar='start: "(" start ")" | BAD\nBAD: /x(.*y){18}z/'))
    guides.open(Opening(1, grammar, spell("(")))
    before = masks(guides, 1)
    draft = spell("x" + "ayby" * 60)
    found = guides.draft_masks([(1, draft)])
    assert masks(guides, 1) == before
    guides.open(Opening(2, grammar, spell("(")))
    failed = {}
    for token in draft:
        guides.advance(2, [token])
        failed |= guides.masks([2])[1]
    assert bool(failed) == (1 not in found)
