"""Words of a text that was heard, from its tokens: as transformers and OpenAI's own code part them.

Tokens are put together to whole characters, characters to words at blanks, and marks to the words that they belong to.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = ["Word", "prefixes", "words_of"]

_UNKNOWN = "\ufffd"
_MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_BEFORE = "\"'“¡¿([{-"
_BEHIND = "\"'.。,，!！?？:：”)]}、"
_WITHOUT_BLANKS = frozenset(("zh", "ja", "th", "lo", "my", "yue"))
"""Codes of languages whose words no blanks part."""

_Part = tuple[str, int, int]
"""A text, and its tokens: the first, and the one behind the last."""


class Word(msgspec.Struct, frozen=True):
    """A word, with the marks at its sides, and when it is said, in seconds from the sound's beginning."""

    word: str
    start: float
    end: float


def prefixes(token_ids: Sequence[int]) -> list[list[int]]:
    """Return the first token, the first two, and so on, whose texts `words_of` takes."""
    return [list(token_ids[: count + 1]) for count in range(len(token_ids))]


def words_of(
    texts: Sequence[str], times: Sequence[tuple[float, float]], language: str | None = None
) -> list[Word]:
    """Return the words of a text.

    Args:
        texts: what `prefixes` of its tokens say.
        times: when each token begins and ends.
        language: its code; None has blanks between words.
    """
    parts = _characters(texts)
    if language not in _WITHOUT_BLANKS:
        parts = _at_blanks(parts)
    found = _with_marks_behind(_with_marks_before(parts))
    return [
        Word(text.strip(), round(times[first][0], 2), round(times[end - 1][1], 2))
        for text, first, end in found
        if text.strip()
    ]


def _characters(texts: Sequence[str]) -> list[_Part]:
    """Return the least parts of a text that are whole characters."""
    found: list[_Part] = []
    first = begin = 0
    whole = texts[-1] if texts else ""
    for index, text in enumerate(texts):
        place = text.find(_UNKNOWN, begin)
        if place < 0 or place >= len(whole) or whole[place] == _UNKNOWN:
            found.append((text[begin:], first, index + 1))
            first, begin = index + 1, len(text)
    return found


def _at_blanks(parts: Sequence[_Part]) -> list[_Part]:
    found: list[_Part] = []
    for text, first, end in parts:
        if not found or text.startswith(" ") or text.strip() in _MARKS:
            found.append((text, first, end))
        else:
            before, begin, _ = found[-1]
            found[-1] = before + text, begin, end
    return found


def _with_marks_before(parts: Sequence[_Part]) -> list[_Part]:
    """Put opening marks, such as quotes, to the words behind them."""
    found: list[_Part] = []
    for text, first, end in reversed(parts):
        if found and text.startswith(" ") and text.strip() in _BEFORE:
            behind, _, last = found[-1]
            found[-1] = text + behind, first, last
        else:
            found.append((text, first, end))
    return found[::-1]


def _with_marks_behind(parts: Sequence[_Part]) -> list[_Part]:
    """Put closing marks, such as full stops, to the words before them."""
    found: list[_Part] = []
    for text, first, end in parts:
        if found and not found[-1][0].endswith(" ") and text in _BEHIND:
            before, begin, _ = found[-1]
            found[-1] = before + text, begin, end
        else:
            found.append((text, first, end))
    return found
