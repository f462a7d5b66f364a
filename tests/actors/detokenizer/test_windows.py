"""Decoders that Pageant does not recognise are served through a window of tokens."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from pageant.actors.detokenizer.core import (
    Detokenization,
    TokenTable,
)
from tests.actors.detokenizer.tokenizers import SPECIAL, Kind, Unit, draw_chunks, kind, unknown_kind

WINDOW_KINDS: dict[str, Callable[[], Kind]] = {
    "byte fallback": unknown_kind,
    "no decoder": lambda: kind(None, [Unit(word, (word,)) for word in ("the", "a", "b")]),
    "word pieces": lambda: kind(
        decoders.WordPiece(cleanup=False), [Unit(word, (word,)) for word in ("the", "##a", "b")]
    ),
}


@pytest.mark.parametrize("name", WINDOW_KINDS)
@settings(max_examples=150)
@given(st.data(), st.booleans())
def test_other_decoders_are_served_through_a_window(name: str, data: st.DataObject, skip: bool) -> None:
    kind = WINDOW_KINDS[name]()
    words = [unit for unit in kind.units if unit.text.strip()]  # a window of blanks alone is all stripped
    draw = st.lists(st.sampled_from(words), max_size=20)
    prompt, output = (kind.ids(*(t for unit in data.draw(draw) for t in unit.tokens)) for _ in range(2))
    core = Detokenization(kind.tokenization)
    core.open("x", prompt, skip_special_tokens=skip)
    text = "".join(core.push("x", chunk).text for chunk in draw_chunks(data, output)) + core.finish("x").text
    decode = kind.tokenization.decode
    before = decode(prompt, skip_special_tokens=skip)
    assert before + text == decode(prompt + output, skip_special_tokens=skip)


@pytest.mark.parametrize("name", WINDOW_KINDS)
@pytest.mark.parametrize("spaces", [True, False])
def test_special_tokens_have_blanks_between_them_unless_asked_for_without(name: str, spaces: bool) -> None:
    kind = WINDOW_KINDS[name]()
    first, second, *_ = SPECIAL
    core = Detokenization(kind.tokenization)
    core.open("x", kind.ids("b"), skip_special_tokens=False, spaces_between_special_tokens=spaces)
    text = core.push("x", kind.ids("b", first, second, first, "b")).text + core.finish("x").text
    blank = kind.tokenization.decode(kind.ids(first, second), skip_special_tokens=False)[
        len(first) : -len(second)
    ]
    expected = blank.join([first, second, first]) if spaces else first + second + first
    assert expected in text and text.endswith("b")


def test_a_window_does_not_grow_on_bytes_that_never_become_a_character() -> None:
    kind = unknown_kind()
    core = Detokenization(kind.tokenization)
    core.open("x", kind.ids("a"))
    text = ""
    for _ in range(100):
        text += core.push("x", kind.ids("<0xFF>")).text
        core.check_integrity()
    assert text + core.finish("x").text == "\ufffd" * 100


class CountingTable:
    """A tokenizer that counts how many tokens it is asked to decode."""

    special_ids: frozenset[int] = frozenset()
    decoder_spec = None

    def __init__(self) -> None:
        self.num_decoded = 0

    def id_to_token(self, token_id: int, /) -> str | None:
        return "x"

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        self.num_decoded += len(token_ids)
        return "x" * len(token_ids)


def test_the_cost_of_a_window_is_linear_in_the_output() -> None:
    table = CountingTable()
    checked: TokenTable = table
    core = Detokenization(checked)
    core.open("x", range(1000))
    for token_id in range(1000):
        core.push("x", [token_id])
    assert table.num_decoded < 1000 * 10
