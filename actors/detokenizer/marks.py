"""Automata that find texts in tokens, by the tokens' own bytes; see `Mark`."""

from __future__ import annotations

from collections.abc import Sequence

from pageant.protocol.thinking import Mark

__all__ = ["spell_begin", "spell_end"]


def spell_end(text: bytes, pieces: Sequence[bytes]) -> Mark:
    """Return the automaton that finds a text anywhere in the tokens' output.

    Args:
        pieces: the bytes of each token, by its id.
    """
    begins = {token: state for token, piece in enumerate(pieces) if (state := _state_of(text, piece))}
    return _mark(text, pieces, begins, anywhere=True)


def spell_begin(text: bytes, pieces: Sequence[bytes]) -> Mark:
    """Return the automaton that finds a text with only blanks before it. The arguments are those of
    `spell_end`.
    """
    begins = {}
    for token, piece in enumerate(pieces):
        written = piece.lstrip()
        if written and (text.startswith(written) or written.startswith(text)):
            begins[token] = min(len(written), len(text))
    blanks = tuple(token for token, piece in enumerate(pieces) if not piece.strip())
    return _mark(text, pieces, begins, anywhere=False, blanks=blanks)


def _mark(
    text: bytes,
    pieces: Sequence[bytes],
    begins: dict[int, int],
    *,
    anywhere: bool,
    blanks: tuple[int, ...] = (),
) -> Mark:
    by_first: dict[int, list[int]] = {}
    for token, piece in enumerate(pieces):
        if piece and piece[0] in text:
            by_first.setdefault(piece[0], []).append(token)
    silent = [token for token, piece in enumerate(pieces) if not piece]
    goes_on: list[dict[int, int]] = [{}]
    for state in range(1, len(text)):
        # Once the text has begun, a token that could begin it continues it or ends the match.
        found = {} if anywhere else dict.fromkeys(begins, 0)
        found |= dict.fromkeys(silent, state)
        for token in by_first.get(text[state], ()):
            piece = pieces[token]
            if anywhere:
                after = _state_of(text, text[:state] + piece)
            else:
                after = _prefix_of(text[state:], piece)
                after += state if after else 0
            if after != begins.get(token, 0) or token in found:
                found[token] = after
        goes_on.append(found)
    whole = {piece: token for token, piece in reversed(list(enumerate(pieces))) if piece}
    rest = tuple(_written(text[state:], whole) for state in range(len(text)))
    return Mark(length=len(text), begins=begins, goes_on=tuple(goes_on), rest=rest, blanks=blanks)


def _state_of(text: bytes, written: bytes) -> int:
    """Return the state after bytes that continue no part of a text."""
    if text in written:
        return len(text)
    longest = min(len(text) - 1, len(written))
    return next((length for length in range(longest, 0, -1) if written.endswith(text[:length])), 0)


def _prefix_of(text: bytes, written: bytes) -> int:
    """Return how many bytes of a text the given bytes write, from its beginning; 0 if they write something
    else.
    """
    return min(len(written), len(text)) if text.startswith(written) or written.startswith(text) else 0


def _written(text: bytes, tokens: dict[bytes, int]) -> tuple[int, ...]:
    """Return the tokens that write a text, each the longest possible; none if some byte has no token."""
    found: list[int] = []
    while text:
        piece = next((text[:length] for length in range(len(text), 0, -1) if text[:length] in tokens), None)
        if piece is None:
            return ()
        found.append(tokens[piece])
        text = text[len(piece) :]
    return tuple(found)
