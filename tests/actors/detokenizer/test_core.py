"""Detokenization against whole-text decoding, for any chunking, with and without stop strings."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pageant.actors.detokenizer.core import (
    Detokenization,
    DetokenizationStatistics,
    StopMatch,
    TextDelta,
)
from tests.actors.detokenizer.tokenizers import KINDS, Case, Kind, draw_case, draw_chunks

every_kind = pytest.mark.parametrize("name", KINDS)
stop_strings = st.lists(st.text("ab th\né✓漢🙂", min_size=1, max_size=5), max_size=4).map(tuple)


def first_stop(case: Case, stops: Sequence[str], min_tokens: int) -> tuple[int, StopMatch] | None:
    """Return the end of the first match in the text, and the match, by trying everything."""
    available = 0
    for num_tokens, length in enumerate(case.lengths, start=1):
        for end in range(available + 1, length + 1):
            complete = [stop for stop in stops if case.text[:end].endswith(stop)]
            if complete and num_tokens > min_tokens:
                return end, StopMatch(stop=max(complete, key=len), num_tokens=num_tokens)
        available = length
    return None


@every_kind
@settings(max_examples=250)
@given(st.data(), stop_strings, st.booleans(), st.booleans(), st.integers(0, 6))
def test_the_deltas_are_the_whole_text_cut_at_the_first_stop(
    name: str, data: st.DataObject, stop: tuple[str, ...], include: bool, skip: bool, min_tokens: int
) -> None:
    case = draw_case(data, KINDS[name], skip)
    match = first_stop(case, stop, min_tokens)
    expected = case.text
    if match is not None:
        expected = case.text[: match[0] - (0 if include else len(match[1].stop))]

    core = Detokenization(KINDS[name].tokenization)
    core.open(
        1,
        case.prompt,
        stop=stop,
        include_stop_str_in_output=include,
        skip_special_tokens=skip,
        min_tokens=min_tokens,
    )
    shown, num_pushed = "", 0
    for chunk in draw_chunks(data, case.output):
        delta = core.push(1, chunk)
        core.check_integrity()
        shown += delta.text
        num_pushed += len(chunk)
        if match is not None and num_pushed >= match[1].num_tokens:
            assert delta.stop == match[1]
            assert shown == expected
        else:
            assert delta.stop is None
            available = case.lengths[num_pushed - 1] if num_pushed else 0
            assert available - len(shown) <= max(map(len, stop), default=1) - 1
            assert case.text.startswith(shown)
    delta = core.finish(1)
    assert shown + delta.text == expected
    assert delta.stop == (match and match[1])
    assert len(core) == 0


@settings(max_examples=500)
@given(st.data(), st.booleans())
def test_byte_level_decoding_is_exact_for_any_tokens_valid_or_not(data: st.DataObject, skip: bool) -> None:
    tokenization = KINDS["byte level"].tokenization
    ids = data.draw(st.lists(st.integers(0, tokenization.vocab_size + 2), max_size=40))
    core = Detokenization(tokenization)
    core.open("x", [], skip_special_tokens=skip)
    text = "".join(core.push("x", chunk).text for chunk in draw_chunks(data, ids)) + core.finish("x").text
    assert text == tokenization.decode(ids, skip_special_tokens=skip)


@every_kind
def test_a_token_s_text_is_found_for_every_token_of_the_vocabulary(name: str) -> None:
    tokenization = KINDS[name].tokenization
    for token_id in range(tokenization.vocab_size):
        core = Detokenization(tokenization)
        core.open("x", KINDS[name].ids("a"), skip_special_tokens=False)
        text = core.push("x", [token_id]).text + core.finish("x").text
        assert "a" + text == tokenization.decode([*KINDS[name].ids("a"), token_id], skip_special_tokens=False)


def outcome(
    kind: Kind,
    chunks: Sequence[Sequence[str]],
    prompt: Sequence[str] = ("a",),
    **options: Any,
) -> list[TextDelta]:
    core = Detokenization(kind.tokenization)
    core.open("x", kind.ids(*prompt), **options)
    return [*(core.push("x", kind.ids(*chunk)) for chunk in chunks), core.finish("x")]


def test_a_character_split_over_tokens_comes_out_whole() -> None:
    chunks = [["<0xF0>"], ["<0x9F>"], ["<0x99>"], ["<0x82>"]]
    texts = [delta.text for delta in outcome(KINDS["llama 2"], chunks)]
    assert texts == ["", "", "", "🙂", ""]


@pytest.mark.parametrize(("name", "expected"), [("byte level", "\ufffd"), ("llama 2", "\ufffd\ufffd")])
def test_an_unfinished_character_is_replaced_at_the_end_as_whole_decoding_does(
    name: str, expected: str
) -> None:
    kind = KINDS[name]
    unit = next(unit for unit in kind.units if unit.text == "漢" and len(unit.tokens) == 3)
    deltas = outcome(kind, [unit.tokens[:2]])
    assert [delta.text for delta in deltas] == ["", expected]
    assert kind.tokenization.decode(kind.ids(*unit.tokens[:2])) == expected


def test_a_character_that_the_prompt_began_is_completed() -> None:
    unit = next(unit for unit in KINDS["byte level"].units if unit.text == "漢" and len(unit.tokens) == 3)
    deltas = outcome(KINDS["byte level"], [unit.tokens[2:], ["a"]], prompt=("a", *unit.tokens[:2], "<s>"))
    assert [delta.text for delta in deltas] == ["漢", "a", ""]


@pytest.mark.parametrize("name", ["llama 2", "metaspace"])
@pytest.mark.parametrize(
    ("prompt", "expected"), [(("a",), " a"), (("<s>", "▁the", "</s>"), " a"), (("<s>",), "a"), ((), "a")]
)
def test_only_the_start_of_a_text_loses_its_blank(name: str, prompt: tuple[str, ...], expected: str) -> None:
    chunks = [["<s>"], ["▁a"], ["▁a"]]
    texts = [delta.text for delta in outcome(KINDS[name], chunks, prompt=prompt)]
    assert texts == ["", expected, " a", ""]


def test_text_that_may_become_a_stop_string_is_held_back_and_released() -> None:
    chunks = [["a"], ["a"], ["b"], ["the"], ["a"]]
    deltas = outcome(KINDS["gemma"], chunks, stop=("aaba",))
    assert [delta.text for delta in deltas] == ["", "", "", "aabthe", "", "a"]


def test_a_stop_string_may_begin_and_end_inside_of_tokens() -> None:
    deltas = outcome(KINDS["gemma"], [["the", "aab", "▁the", "b"]], stop=("ab th",))
    assert deltas[0] == TextDelta(text="thea", stop=StopMatch(stop="ab th", num_tokens=3))
    included = outcome(
        KINDS["gemma"], [["the", "aab", "▁the"]], stop=("ab t",), include_stop_str_in_output=True
    )
    assert included[0].text == "theaab t"


def test_the_stop_completed_first_wins_and_the_longest_of_those_completed_together() -> None:
    first = outcome(KINDS["gemma"], [["aab", "ba"]], stop=("aabb", "ab", "b"))
    assert first[0] == TextDelta(text="a", stop=StopMatch(stop="ab", num_tokens=1))


def test_after_a_stop_tokens_change_nothing() -> None:
    core = Detokenization(KINDS["gemma"].tokenization)
    ids = KINDS["gemma"].ids
    core.open("x", ids("a"), stop=("b",))
    stop = core.push("x", ids("a", "b", "a")).stop
    assert stop == StopMatch(stop="b", num_tokens=2)
    assert core.push("x", ids("b", "a")) == TextDelta(text="", stop=stop)
    assert core.statistics().num_stops == 1
    assert core.finish("x") == TextDelta(text="", stop=stop)
    assert core.statistics() == DetokenizationStatistics(
        num_requests=0, num_held_chars=0, num_tokens=5, num_stops=1
    )


def test_a_stop_within_the_first_tokens_does_not_count_but_may_begin_there() -> None:
    deltas = outcome(KINDS["gemma"], [["a", "b", "a"], ["b"]], stop=("ab", "aba"), min_tokens=3)
    assert deltas[0] == TextDelta(text="ab")  # held: the last "a", which may begin "ab"
    assert deltas[1] == TextDelta(text="", stop=StopMatch(stop="ab", num_tokens=4))


def test_many_requests_do_not_disturb_one_another() -> None:
    core = Detokenization(KINDS["gemma"].tokenization)
    ids = KINDS["gemma"].ids
    for key in range(50):
        core.open(key, ids("a"), stop=("ab",) if key % 2 else ())
    texts = [core.push(key, ids("a")).text for key in range(50)]
    assert texts == ["a", ""] * 25
    assert core.statistics().num_held_chars == 25
    core.close(3)
    core.close(3)
    assert 3 not in core and len(core) == 49


def test_misuse_is_refused() -> None:
    core = Detokenization(KINDS["gemma"].tokenization)
    with pytest.raises(ValueError, match=r"stop\[1\]: empty"):
        core.open("x", [], stop=("a", ""))
    assert "x" not in core
    core.open("x", [])
    with pytest.raises(ValueError, match="'x' is open already"):
        core.open("x", [])
    with pytest.raises(KeyError, match="absent"):
        core.push("absent", [1])
    with pytest.raises(KeyError, match="absent"):
        core.finish("absent")


def test_the_integrity_check_notices_text_that_is_held_for_no_reason() -> None:
    core = Detokenization(KINDS["gemma"].tokenization)
    core.open("x", [], stop=("ab",))
    core._streams["x"].held = "too long"
    with pytest.raises(AssertionError, match="'x' holds 8 characters"):
        core.check_integrity()


@example("ab" * 10)
@given(st.text("ab", min_size=1, max_size=30))
def test_periodic_stop_strings_are_found_where_str_find_finds_them(stop: str) -> None:
    kind = KINDS["gemma"]
    text = "abaab" * 5 + stop + "a"
    delta = outcome(kind, [[char] for char in text], stop=(stop,))
    position = text.find(stop)
    assert "".join(part.text for part in delta) == text[:position]
    assert delta[-1].stop == StopMatch(stop=stop, num_tokens=position + len(stop))


class SpecialTokens:
    """Letters by their code, and one special token that is skipped."""

    special_ids = frozenset({300})
    decoder_spec = None

    def id_to_token(self, token_id):
        return "<|end|>" if token_id == 300 else chr(token_id)

    def decode(self, token_ids, *, skip_special_tokens=True):
        return "".join(
            self.id_to_token(one)
            for one in token_ids
            if not (skip_special_tokens and one in self.special_ids)
        )


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("includes", [True, False])
def test_a_stop_string_that_is_a_special_token_stops_whether_that_is_skipped_or_not(skips, includes):
    detokenization = Detokenization(SpecialTokens())
    detokenization.open(
        1, (), stop=("<|end|>", "zz"), skip_special_tokens=skips, include_stop_str_in_output=includes
    )
    deltas = [detokenization.push(1, [token]) for token in (*map(ord, "abz"), 300, ord("c"))]
    text = "".join(delta.text for delta in deltas) + detokenization.finish(1).text
    assert text == "abz" + "<|end|>" * includes
    assert deltas[-1].stop is not None
    assert (deltas[-1].stop.stop, deltas[-1].stop.num_tokens) == ("<|end|>", 4)


def test_a_special_token_within_the_least_length_does_not_stop():
    detokenization = Detokenization(SpecialTokens())
    detokenization.open(1, (), stop=("<|end|>",), min_tokens=2)
    assert detokenization.push(1, [300, ord("a")]).stop is None
    assert detokenization.push(1, [300]).stop is not None
