"""The detokenizer's core: the text of many requests, as their tokens come, up to the end or a stop string."""

from collections.abc import Hashable, Mapping, Sequence

import msgspec

from pageant.actors.detokenizer.decoding import UNDECODED_TOKENS_MAX, Decoding, StreamDecoder, TokenTable
from pageant.actors.detokenizer.stop_strings import StopAutomaton


class StopMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A stop string was completed by the `num_tokens`-th output token (from 1, special ones counted)."""

    stop: str
    num_tokens: int


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New visible text, and the stop string that ended it. Nothing visible comes after a stop."""

    text: str
    stop: StopMatch | None = None


class DetokenizationStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of the detokenizer's core."""

    num_requests: int
    """Open now."""
    num_held_chars: int
    """Characters held back now, because they could still become a stop string."""
    num_tokens: int
    """Tokens pushed since the start."""
    num_stops: int
    """Requests ended by a stop string since the start."""


class Detokenization:
    """The text of many requests, each under a key of the caller's choice.

    The deltas of a request, joined, are `decode(prompt + output)` without its part `decode(prompt)`, up to the
    first stop string, however the output was chunked. This is exact for byte-level decoders. With byte fallback
    it is exact on valid UTF-8; in an invalid run of bytes, characters already emitted cannot be revised. Held
    back are at most `max(len(stop)) - 1` characters and the bytes of an unfinished one.

    The first stop string is the one that is completed first; of several completed by the same character, the
    longest. One completed within the first `min_tokens` tokens does not count (as in vLLM).
    """

    def __init__(self, tokenizer: TokenTable) -> None:
        self._decoding = Decoding(tokenizer)
        self._specials = {tokenizer.id_to_token(token_id): token_id for token_id in tokenizer.special_ids}
        self._streams: dict[Hashable, _Stream] = {}
        self._num_tokens = 0
        self._num_stops = 0

    def pieces(self, num_tokens: int) -> list[bytes] | None:
        """Return the bytes of the first `num_tokens` tokens, by id; None where a token's text depends on its
        neighbours.
        """
        return self._decoding.pieces(num_tokens)

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return a token's bytes if they are no whole characters and the decoder knows them; else None."""
        return self._decoding.token_bytes(token_id)

    def open(
        self,
        key: Hashable,
        prompt_token_ids: Sequence[int],
        *,
        stop: tuple[str, ...] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        """Begin a request whose output continues the text of the prompt.

        Usually only the prompt's end is read, and nothing of it is kept. Raises `ValueError` for a key that is
        open already and for an empty stop string.
        """
        if key in self._streams:
            raise ValueError(f"request {key!r} is open already")
        for index, string in enumerate(stop):
            if not string:
                raise ValueError(f"stop[{index}]: empty, expected at least one character")
        self._streams[key] = _Stream(
            self._decoding.stream(prompt_token_ids, skip_special_tokens, spaces_between_special_tokens),
            StopAutomaton(stop) if stop else None,
            include_stop_str_in_output,
            min_tokens,
            # Special tokens that are skipped have no text in which a stop string could be found.
            {self._specials[one]: one for one in stop if one in self._specials}
            if skip_special_tokens
            else {},
        )

    def push(self, key: Hashable, token_ids: Sequence[int]) -> TextDelta:
        """Return the text that the next output tokens make visible. Raises `KeyError` for a key that is not
        open.

        After a stop, tokens change nothing: the text is empty and the same stop is returned again.
        """
        stream = self._streams[key]
        was_stopped = stream.match is not None
        delta = stream.push(token_ids)
        self._num_tokens += len(token_ids)
        self._num_stops += not was_stopped and delta.stop is not None
        return delta

    def finish(self, key: Hashable) -> TextDelta:
        """Return the text that was held back, an unfinished character as U+FFFD; close the request.

        Raises `KeyError` for a key that is not open.
        """
        stream = self._streams.pop(key)
        was_stopped = stream.match is not None
        delta = stream.finish()
        self._num_stops += not was_stopped and delta.stop is not None
        return delta

    def close(self, key: Hashable) -> None:
        """Forget a request, open or not."""
        self._streams.pop(key, None)

    def statistics(self) -> DetokenizationStatistics:
        """Return the counters."""
        return DetokenizationStatistics(
            num_requests=len(self._streams),
            num_held_chars=sum(len(stream.held) for stream in self._streams.values()),
            num_tokens=self._num_tokens,
            num_stops=self._num_stops,
        )

    def check_integrity(self) -> None:
        """Raise `AssertionError` if a request's state contradicts itself."""
        for key, stream in self._streams.items():
            stream.check_integrity(key)

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._streams


class _Stream:
    """One request: its decoder, and the end of its text that may be the beginning of a stop string."""

    __slots__ = (
        "_automaton",
        "_decoder",
        "_include_stop",
        "_min_tokens",
        "_num_tokens",
        "_special_stops",
        "_state",
        "held",
        "match",
    )

    def __init__(
        self,
        decoder: StreamDecoder,
        automaton: "StopAutomaton | None",
        include_stop: bool,
        min_tokens: int,
        special_stops: Mapping[int, str],
    ) -> None:
        self._decoder = decoder
        self._automaton = automaton
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        # Stop strings that are special tokens, by their ids.
        self._special_stops = special_stops
        self._num_tokens = 0
        self._state = 0
        # Decoded text that may still become a stop string; "" after a stop.
        self.held = ""
        # The stop string that ended the text, or None.
        self.match: StopMatch | None = None

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        if self._automaton is None:
            self._num_tokens += len(token_ids)
            return TextDelta(text=self._decoder.feed_all(token_ids))
        feed = self._decoder.feed
        visible = []
        for token_id in token_ids:
            if self.match is not None:
                break
            self._num_tokens += 1
            if text := feed(token_id):
                visible.append(self._reveal(text, self._automaton))
            if token_id in self._special_stops and self._num_tokens > self._min_tokens and self.match is None:
                visible.append(self._stop_at(self._special_stops[token_id]))
        return TextDelta(text="".join(visible), stop=self.match)

    def finish(self) -> TextDelta:
        if self.match is not None:
            return TextDelta(text="", stop=self.match)
        text = self._decoder.flush()
        if self._automaton is not None:
            text = self._reveal(text, self._automaton)
        if self.match is None:
            text += self.held
        self.held = ""
        return TextDelta(text=text, stop=self.match)

    def check_integrity(self, key: Hashable) -> None:
        held_max = 0 if self._automaton is None else self._automaton.num_held_max
        assert len(self.held) <= held_max, f"{key!r} holds {len(self.held)} characters, limit {held_max}"
        assert self._decoder.num_pending <= UNDECODED_TOKENS_MAX, f"{key!r}: undecoded tokens pile up"
        assert self.match is None or not self.held, f"{key!r} holds text after its stop"

    def _stop_at(self, stop: str) -> str:
        """End at a special token that is a stop string. Return the text that becomes visible."""
        self.match = StopMatch(stop=stop, num_tokens=self._num_tokens)
        held, self.held = self.held, ""
        return held + stop if self._include_stop else held

    def _reveal(self, text: str, automaton: StopAutomaton) -> str:
        """Add decoded text. Return the visible part of it and of the text held back before."""
        counts = self._num_tokens > self._min_tokens
        self._state, end, stop = automaton.read(self._state, text, until_match=counts)
        seen = self.held + text
        if stop is None:
            cut = len(seen) - automaton.num_held[self._state]
            self.held = seen[cut:]
            return seen[:cut]
        self.match = StopMatch(stop=stop, num_tokens=self._num_tokens)
        cut = len(self.held) + end - (0 if self._include_stop else len(stop))
        self.held = ""
        return seen[:cut]
