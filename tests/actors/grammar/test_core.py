"""Guided sequences: what may follow, what has followed, and what is taken back."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

from pageant.actors.grammar.core import HERE, Guides, Opening
from pageant.protocol.structured_outputs import StructuredOutputsParams as Asked

ENDS = (0, 1)


@pytest.fixture
def guides(vocab_size):
    return Guides(vocab_size, ENDS, threads=2)


def allowed(bits) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())


class Followed:
    """Sequences, of which this knows the positions, and what was last said to follow each."""

    def __init__(self, guides: Guides, here: bool) -> None:
        self.guides = guides
        self.here = here
        self.positions: dict[int, int] = {}
        self.may: dict[int, set[int]] = {}
        self.failed: dict[int, str] = {}

    def open(self, number, grammar, tokens=(), ignore_eos=False, position=7):
        """Begins one."""
        self.positions[number] = position
        self._took(
            self.guides.step(opened=[Opening(number, grammar, position, tokens, ignore_eos)], here=self.here)
        )

    def draw(self, **tokens):
        """A step: the next token of each of some, such as `_1`."""
        numbers = [int(name[1:]) for name in tokens]
        positions = [self.positions[number] for number in numbers]
        for number in numbers:
            self.positions[number] += 1
        self._took(self.guides.step((), (), numbers, positions, list(tokens.values()), here=self.here))

    def follow(self, number, tokens):
        """One after another."""
        for token in tokens:
            self.draw(**{f"_{number}": token})

    def draft(self, **drafts):
        """Return what may follow along drafts, by sequence: a set for each place."""
        numbers = [int(name[1:]) for name in drafts]
        positions, counts = [self.positions[number] for number in numbers], map(len, drafts.values())
        masks = self.guides.draft_masks(
            numbers, positions, list(counts), [token for draft in drafts.values() for token in draft]
        )
        found: dict[int, list[set[int]]] = {}
        rows = zip(
            masks.guides.tolist(), masks.positions.tolist(), masks.ahead.tolist(), masks.bits, strict=True
        )
        for number, position, ahead, bits in rows:
            assert position == self.positions[number] + ahead and ahead == len(found.setdefault(number, []))
            found[number].append(allowed(bits))
        return found

    def open_together(self, numbers, grammar, tokens=()):
        """Begins some that have said the same."""
        self.positions |= dict.fromkeys(numbers, 7)
        openings = [Opening(number, grammar, 7, tokens) for number in numbers]
        self._took(self.guides.step(opened=openings, here=self.here))

    def _took(self, masks):
        assert not masks.lost
        for number, position, bits in zip(
            masks.guides.tolist(), masks.positions.tolist(), masks.bits, strict=True
        ):
            assert position == self.positions[number]
            self.may[number] = allowed(bits)
        self.failed.update(masks.failed)
        self.guides.check_integrity()


@pytest.fixture(params=[False, True], ids=["by its threads", "here"])
def followed(guides, request):
    return Followed(guides, request.param)


def test_masks_say_what_may_follow_and_end_tokens_where_it_may_end(followed, compiler, spell):
    followed.open(1, compiler.compile(Asked(regex="ab?")))
    followed.open(2, compiler.compile(Asked(choice=["yes", "no"])))
    assert followed.may == {1: {*spell("a")}, 2: {*spell("yn")}}
    followed.draw(_1=spell("a")[0])
    assert followed.may[1] == {*ENDS, *spell("b")}
    followed.draw(_2=spell("n")[0], _1=spell("b")[0])
    assert followed.may == {1: {*ENDS}, 2: {*spell("o")}}


def test_padding_of_the_vocabulary_is_never_allowed(followed, compiler, tokenization, vocab_size):
    followed.open(1, compiler.compile(Asked(regex="(.|\n)*")))
    assert max(followed.may[1]) < tokenization.vocab_size < vocab_size


def test_with_ignore_eos_it_ends_only_where_it_must(followed, compiler, spell):
    grammar = compiler.compile(Asked(regex="a+b?"))
    followed.open(1, grammar, spell("a"), ignore_eos=True)
    followed.open(2, grammar, spell("a"))
    assert followed.may == {1: {*spell("ab")}, 2: {*ENDS, *spell("ab")}}
    followed.draw(_1=spell("b")[0], _2=spell("a")[0])
    assert followed.may == {1: {*ENDS}, 2: {*ENDS, *spell("ab")}}


def test_a_sequence_that_is_opened_again_with_its_output_stands_where_it_stood(followed, compiler, spell):
    grammar = compiler.compile(Asked(json={"type": "array", "items": {"type": "integer"}}))
    followed.open(1, grammar)
    followed.follow(1, spell("[1, 23"))
    followed.open(2, grammar, spell("[1, 23"))
    assert followed.may[1] == followed.may[2] == {*spell("0123456789,]. \neE")} & followed.may[1]


def test_what_does_not_fit_fails_its_own_sequence(followed, compiler, spell):
    grammar = compiler.compile(Asked(choice=["yes"]))
    followed.open(1, grammar, spell("no"))
    followed.open(2, grammar)
    followed.open(3, grammar)
    assert set(followed.failed) == {1} and "left its grammar" in followed.failed[1]
    followed.draw(_1=spell("y")[0], _2=spell("x")[0], _3=spell("y")[0])
    assert set(followed.failed) == {1, 2} and followed.failed[2].endswith("after 0 tokens")
    assert followed.may[3] == {*spell("e")}


def test_tokens_of_a_sequence_that_stands_elsewhere_are_not_taken(guides, compiler, spell):
    grammar = compiler.compile(Asked(regex="ab"))
    guides.step(opened=[Opening(1, grammar, 7), Opening(2, grammar, 7)])
    a = spell("a")[0]
    masks = guides.step(guides=[3, 1, 2], positions=[7, 8, 7], token_ids=[a, a, a])
    assert masks.lost == [3, 1] and masks.guides.tolist() == [2]
    masks = guides.step(guides=[1], positions=[7], token_ids=[a])
    assert not masks.lost and allowed(masks.bits[0]) == {*spell("b")}


def test_a_closed_sequence_is_forgotten(guides, compiler, spell):
    guides.step(opened=[Opening(1, compiler.compile(Asked(choice=["yes"])), 7)])
    assert 1 in guides
    masks = guides.step([1, 1])
    assert 1 not in guides and not len(guides) and not len(masks.guides)
    assert guides.step((), (), [1], [7], spell("y")).lost == [1]


def test_drafts_have_a_mask_for_each_place_and_leave_the_sequence_where_it_was(
    followed, compiler, spell, vocab_size
):
    followed.open(1, compiler.compile(Asked(regex="abc+")), spell("a"))
    followed.open(2, compiler.compile(Asked(regex="b+c?")), spell("b"), ignore_eos=True)
    found = followed.draft(_1=spell("bcx"), _2=spell("bc"))
    everything = set(range(-(-vocab_size // 32) * 32))  # after the x, which does not fit, it does not matter
    assert found[1] == [{*spell("b")}, {*spell("c")}, {*ENDS, *spell("c")}, everything]
    assert found[2] == [{*spell("bc")}, {*spell("bc")}, {*ENDS}]
    followed.draw(_1=spell("b")[0], _2=spell("b")[0])
    assert followed.may == {1: {*spell("c")}, 2: {*spell("bc")}}


def test_drafts_from_elsewhere_have_no_masks(guides, compiler, spell):
    grammar = compiler.compile(Asked(regex="ab+"))
    guides.step(opened=[Opening(1, grammar, 7), Opening(2, grammar, 7)])
    masks = guides.draft_masks([1, 3, 2], [8, 7, 7], [2, 1, 1], spell("abba"))
    assert masks.guides.tolist() == [2, 2] and allowed(masks.bits[1]) == {*spell("b")}


def test_drafts_that_would_cost_too_much_fail_nothing(followed, compiler, spell):
    grammar = compiler.compile(Asked(grammar='start: "(" start ")" | BAD\nBAD: /x(.*y){18}z/'))
    followed.open(1, grammar, spell("("))
    before = followed.may[1]
    draft = spell("x" + "ayby" * 60)
    found = followed.draft(_1=draft)
    followed.open(1, grammar, spell("("))
    assert followed.may[1] == before
    followed.follow(1, draft)
    assert bool(followed.failed) == (1 not in found)


@pytest.mark.parametrize("seed", range(5))
def test_twins_are_told_the_same_as_each_would_be_alone(guides, compiler, vocab_size, spell, seed):
    """Ten sequences that leave one another by and by: some rest for a step, are closed, or are opened again."""
    chance = random.Random(seed)
    grammar = compiler.compile(Asked(regex="(aa|ab|ba)*c[a-d]{0,5}"))
    together = Followed(guides, here=True)
    alone = Followed(Guides(vocab_size, ENDS, threads=1), here=True)
    said: dict[int, list[int]] = {number: [] for number in range(10)}
    together.open_together(range(10), grammar)
    for number in range(10):
        alone.open(number, grammar)
    for _ in range(15):
        assert together.may == alone.may
        open_ones = [number for number in said if together.may[number] - {*ENDS}]
        if not open_ones:
            break
        tokens = {}
        for number in chance.sample(open_ones, k=chance.randint(1, len(open_ones))):
            token = chance.choice(sorted(together.may[number] - {*ENDS}))
            tokens[f"_{number}"] = token
            said[number].append(token)
        together.draw(**tokens)
        alone.draw(**tokens)
        if chance.random() < 0.3:
            number = chance.choice(list(said))
            for followed in (together, alone):
                followed.open(number, grammar, said[number], position=7 + len(said[number]))
        if chance.random() < 0.2 and len(said) > 3:
            number = min(said)  # the first of its twins
            for followed in (together, alone):
                followed.guides.step([number])
                del followed.may[number]
            del said[number]
    assert not together.failed and not alone.failed
    assert len({tuple(tokens) for tokens in said.values()}) > 1, "they have left one another"


def test_a_twin_with_several_tokens_at_once_leaves_the_others(guides, compiler, spell):
    """Accept several tokens at once, as when drafts were right."""
    grammar = compiler.compile(Asked(regex="abc|abd|ae"))
    followed = Followed(guides, here=True)
    followed.open_together((1, 2, 3), grammar)
    a, b = spell("ab")
    masks = guides.step((), (), [1, 2, 1, 3], [7, 7, 8, 7], [a, a, b, a], here=True)
    found = {number: allowed(bits) for number, bits in zip(masks.guides.tolist(), masks.bits, strict=True)}
    assert found == {1: {*spell("cd")}, 2: {*spell("be")}, 3: {*spell("be")}}
    assert masks.made == 2


def test_twins_end_each_as_it_is_to(guides, compiler, spell):
    grammar = compiler.compile(Asked(regex="a+"))
    openings = [Opening(number, grammar, 7, spell("a"), ignore_eos=number == 2) for number in (1, 2)]
    masks = guides.step(opened=openings, here=True)
    assert masks.made == 1
    assert [allowed(bits) for bits in masks.bits] == [{*ENDS, *spell("a")}, {*spell("a")}]


def test_twins_have_one_mask_made_for_all(guides, compiler, spell, monkeypatch):
    made = []
    mask = HERE.mask
    monkeypatch.setattr(HERE, "mask", lambda work, bits: (made.append(len(work)), mask(work, bits)))
    grammar, other = (compiler.compile(Asked(regex=regex)) for regex in ("[ab]*", "[ab]+"))
    followed = Followed(guides, here=True)
    followed.open_together((1, 2, 3, 4), grammar)
    followed.open_together((5, 6), other)
    a, b = spell("ab")
    followed.draw(_1=a, _2=a, _3=b, _4=a, _5=a, _6=a)
    followed.draw(_1=a, _2=b, _3=b, _4=b)
    followed.draw(_1=a, _2=a, _4=a, _3=a)
    assert made == [1, 1, 3, 3, 3]


class Costly:
    """A grammar whose masks cost too much: then llguidance lets the output end."""

    def __init__(self):
        self.error = False

    def deep_copy(self):
        return Costly()

    def unsafe_compute_mask_ptr(self, address, num_bytes):
        self.error = True
        ctypes.memset(address, 0, num_bytes)
        ctypes.c_ubyte.from_address(address).value = 1

    def is_error(self):
        return self.error

    def stop_reason(self):
        return "fuel"


def test_what_becomes_too_costly_fails_all_of_its_twins(guides):
    followed = Followed(guides, here=True)
    followed.open_together((1, 2), Costly())
    assert set(followed.failed) == {1, 2}
    assert len(set(followed.failed.values())) == 1 and "too costly" in followed.failed[1]
