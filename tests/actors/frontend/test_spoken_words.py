"""Words of tokens, against transformers' own functions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.models.whisper import tokenization_whisper

from pageant.actors.frontend.spoken_words import Word, prefixes, words_of

WHOLE = (" a", " The", "b", " ", " (", '"', ".", ",", "!", " '", "-", "()", "。", "日", " é")
IN_PARTS = ("é", "”", "日", "🎺", " 🎺")


@st.composite
def pieces_of(draw: st.DrawFn) -> list[bytes]:
    """Return tokens of a text, some of which are no whole characters."""
    found: list[bytes] = []
    for text in draw(st.lists(st.sampled_from(WHOLE + IN_PARTS), max_size=8)):
        data = text.encode()
        cut = draw(st.integers(1, len(data))) if text in IN_PARTS else len(data)
        found += [data[:cut], data[cut:]] if cut < len(data) else [data]
    return found


class Tokens:
    """A tokenizer whose tokens are bytes."""

    eos_token_id = 1_000_000
    language = None

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def decode(self, token_ids: list[int], **_: Any) -> str:
        """Return the text of tokens, where what is no whole character is U+FFFD."""
        return b"".join(self.pieces[token] for token in token_ids).decode(errors="replace")


@pytest.mark.parametrize(("code", "name"), [("en", "english"), (None, None), ("ja", "japanese")])
@settings(max_examples=150, deadline=None)
@given(pieces=pieces_of())
@example(pieces=[b" Say", b' "', b"yes", b',"', b" (", b"now", b")", b".", "日".encode()])
def test_words_are_those_of_transformers(code: str, name: str, pieces: list[bytes]) -> None:
    tokenizer = Tokens(pieces)
    token_ids = list(range(len(pieces)))
    words, _, indices = tokenization_whisper._combine_tokens_into_words(tokenizer, token_ids, name)
    theirs = [
        Word(word.strip(), float(places[0]), places[-1] + 0.5)
        for word, places in zip(words, indices, strict=True)
        if word.strip()
    ]
    texts = [tokenizer.decode(some) for some in prefixes(token_ids)]
    assert words_of(texts, [(float(token), token + 0.5) for token in token_ids], code) == theirs
