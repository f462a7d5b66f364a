"""Log-probabilities of the tokens that spell the texts of a response's items."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import accumulate

from pageant.actors.http.answers import Piece
from pageant.actors.http.openai.logprobs import ChatTokenLogprob, chat_logprobs

__all__ = ["OutputLogprobs"]


@dataclass
class _Spelt:
    """The rest of a token's text, and its log-probability until that was reported."""

    rest: bytes
    entry: ChatTokenLogprob | None


class OutputLogprobs:
    """Finds the tokens of each text that an answer is told as.

    Tokens come no later than the text that they spell. A parser splits that into thoughts, content and calls, and
    leaves marks out. Texts are told in the order of their tokens, so each is the next occurrence of its letters among
    those that were not told yet; what stands before that is markup.

    Args:
        most: likely tokens to tell of at each place.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tokens: deque[_Spelt] = deque()

    def add(self, piece: Piece) -> None:
        """Take the tokens of the next piece, before its texts."""
        for entry in chat_logprobs(piece.logprobs, piece.token_ids, self._most, False).content:
            self._tokens.append(_Spelt(bytes(entry.bytes), entry))

    def take(self, text: str) -> list[ChatTokenLogprob]:
        """Return those of the tokens that begin within the next text; a token in two texts belongs to the first."""
        wanted = text.encode()
        self._read(self._place(wanted))
        return self._read(len(wanted))

    def _place(self, wanted: bytes) -> int:
        """Return where a text is spelt: from the beginning of a token on, if it is anywhere; else here."""
        spelt = b"".join(token.rest for token in self._tokens)
        begins = {0, *accumulate(len(token.rest) for token in self._tokens)}
        first = place = spelt.find(wanted)
        while place >= 0 and place not in begins:
            place = spelt.find(wanted, place + 1)
        return max(0, first) if place < 0 else place

    def _read(self, length: int) -> list[ChatTokenLogprob]:
        """Read so many bytes of the tokens. Return the log-probabilities of those that begin there."""
        found = []
        while length > 0 and self._tokens:
            token = self._tokens[0]
            if token.entry is not None:
                found.append(token.entry)
                token.entry = None
            if len(token.rest) > length:
                token.rest = token.rest[length:]
                break
            length -= len(token.rest)
            self._tokens.popleft()
        return found
