"""Token ids to text, request by request, as they come; and the end of a request at a stop string.

The text of a token depends on its neighbours (a character's bytes may be spread over several tokens, the
first word loses its blank), so streams usually decode a window of the last tokens twice and take the
difference (vLLM, transformers, `tokenizers.decoders.DecodeStream`). With the decoders that nearly all
language models use, byte-level and sentencepiece with byte fallback, there is no need: the text is the
concatenation of the tokens' own bytes. So each token's bytes are looked up once, and a stream keeps only the
bytes of an unfinished character: exact, and in constant time per token. A window is neither: one of skipped
special tokens loses the blank after it, and `DecodeStream`, otherwise as fast, decodes everything again for
every byte that completes no character. Any other decoder is served by a window.

Stop strings are found by an automaton (Aho and Corasick 1975) that reads each character once. Its state is at
the same time the longest end of the text that could still become a stop string, which is held back.
"""

import codecs
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

_REPLACEMENT_CHARACTER = "\ufffd"
_PROMPT_WINDOW_TOKENS = 6
# Of tokens that each end one character and begin the next, a window sees none complete: it waits this long.
_UNDECODED_TOKENS_MAX = 32


class TokenTable(Protocol):
    """What detokenization needs of a tokenizer; `pageant.models.tokenization.Tokenization` has it."""

    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def decoder_spec(self) -> Mapping[str, Any] | None:
        """The decoder as in tokenizer.json; None, or a kind unknown here, means to use `decode` alone."""

    def id_to_token(self, token_id: int, /) -> str | None: ...

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str: ...


class StopMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A stop string was completed by the `num_tokens`-th output token (from 1, special ones counted)."""

    stop: str
    num_tokens: int


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New visible text, and the stop string that ended it. Nothing visible comes after a stop."""

    text: str
    stop: StopMatch | None = None


class DetokenizationStatistics(msgspec.Struct, frozen=True, kw_only=True):
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

    The deltas of a request, joined, are `decode(prompt + output)` without its part `decode(prompt)`, up to
    the first stop string, however the output was chunked. This is exact for byte-level decoders; with byte
    fallback, on valid UTF-8 (in an invalid run of bytes, characters already emitted cannot be taken back).
    Held back are at most `max(len(stop)) - 1` characters and the bytes of an unfinished one.

    The first stop string is the one that is completed first; of several completed by the same character, the
    longest. One completed within the first `min_tokens` tokens does not count (as in vLLM).
    """

    def __init__(self, tokenizer: TokenTable) -> None:
        self._tokenizer = tokenizer
        self._streams: dict[Hashable, _Stream] = {}
        self._num_tokens = 0
        self._num_stops = 0
        rules = _piece_rules(tokenizer.decoder_spec)
        self._pieces: dict[bool, _PieceTable] = {}
        """By skip_special_tokens; empty where the decoder does not work token by token."""
        if rules is not None:
            self._pieces[False] = _PieceTable(tokenizer, rules, frozenset())
            self._pieces[True] = _PieceTable(tokenizer, rules, tokenizer.special_ids)

    def open(
        self,
        key: Hashable,
        prompt_token_ids: Sequence[int],
        *,
        stop: tuple[str, ...] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        """Begin a request whose output continues the text of the prompt.

        As a rule only the prompt's end is read, and nothing of it is kept. Raises `ValueError` for a key
        that is open already and for an empty stop string.
        """
        if key in self._streams:
            raise ValueError(f"request {key!r} is open already")
        for index, string in enumerate(stop):
            if not string:
                raise ValueError(f"stop[{index}]: empty, expected at least one character")
        self._streams[key] = _Stream(
            self._decoder(prompt_token_ids, skip_special_tokens),
            _StopAutomaton(stop) if stop else None,
            include_stop_str_in_output,
            min_tokens,
        )

    def push(self, key: Hashable, token_ids: Sequence[int]) -> TextDelta:
        """The text that the next output tokens make visible. Raises `KeyError` for a key that is not open.

        After a stop, tokens change nothing: the text is empty and the same stop is returned again.
        """
        stream = self._streams[key]
        was_stopped = stream.match is not None
        delta = stream.push(token_ids)
        self._num_tokens += len(token_ids)
        self._num_stops += not was_stopped and delta.stop is not None
        return delta

    def finish(self, key: Hashable) -> TextDelta:
        """The text that was held back, an unfinished character as U+FFFD; closes the request.

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

    def _decoder(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> "_Decoder":
        if self._pieces:
            return _PieceDecoder(self._pieces[skip_special_tokens], prompt_token_ids)
        skipped = self._tokenizer.special_ids if skip_special_tokens else frozenset()
        return _WindowDecoder(self._tokenizer, skipped, prompt_token_ids)


class _Decoder(Protocol):
    """The text of one request's tokens, without regard to stop strings."""

    @property
    def num_pending(self) -> int:
        """Bytes or tokens that are not text yet."""

    def feed(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class _Stream:
    """One request: its decoder, and the end of its text that may be the beginning of a stop string."""

    __slots__ = (
        "_automaton",
        "_decoder",
        "_include_stop",
        "_min_tokens",
        "_num_tokens",
        "_state",
        "held",
        "match",
    )

    def __init__(
        self, decoder: _Decoder, automaton: "_StopAutomaton | None", include_stop: bool, min_tokens: int
    ) -> None:
        self._decoder = decoder
        self._automaton = automaton
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._state = 0
        self.held = ""
        self.match: StopMatch | None = None

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        feed = self._decoder.feed
        if self._automaton is None:
            self._num_tokens += len(token_ids)
            return TextDelta(text="".join([feed(token_id) for token_id in token_ids]))
        visible = []
        for token_id in token_ids:
            if self.match is not None:
                break
            self._num_tokens += 1
            if text := feed(token_id):
                visible.append(self._reveal(text, self._automaton))
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
        assert self._decoder.num_pending <= _UNDECODED_TOKENS_MAX, f"{key!r}: undecoded tokens pile up"
        assert self.match is None or not self.held, f"{key!r} holds text after its stop"

    def _reveal(self, text: str, automaton: "_StopAutomaton") -> str:
        """Add decoded text; what of it, and of the text held back before, can be seen now."""
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


class _StopAutomaton:
    """Aho-Corasick over a request's stop strings; states are numbered, 0 is "nothing matched so far"."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._stop: list[str | None] = [None]  # the longest stop string that ends in this state
        depth = [0]
        for stop in stops:
            state = 0
            for char in stop:
                state = self._child(state, char, depth)
            self._stop[state] = stop
        self._fallback = [0] * len(depth)
        self.num_held = depth
        """By state, the length of the longest end of the text that is a true beginning of a stop string."""
        self._link()
        self.num_held_max = max(map(len, stops)) - 1
        self._first_chars = frozenset(self._next[0])

    def read(self, state: int, text: str, *, until_match: bool) -> tuple[int, int, str | None]:
        """The state after `text`; or at the first match, with its end in `text` and the stop string."""
        if state == 0 and self._first_chars.isdisjoint(text):
            return 0, 0, None
        following, fallback = self._next, self._fallback
        for index, char in enumerate(text):
            while state and char not in following[state]:
                state = fallback[state]
            state = following[state].get(char, 0)
            if until_match and (stop := self._stop[state]) is not None:
                return state, index + 1, stop
        return state, 0, None

    def _child(self, state: int, char: str, depth: list[int]) -> int:
        if char not in self._next[state]:
            self._next[state][char] = len(depth)
            self._next.append({})
            self._stop.append(None)
            depth.append(depth[state] + 1)
        return self._next[state][char]

    def _link(self) -> None:
        """Breadth first: where each state goes when its next character does not fit."""
        queue = deque([0])
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                self._fallback[child] = self._longest_suffix(state, char)
                queue.append(child)
            if not state:
                continue
            suffix = self._fallback[state]
            self._stop[state] = self._stop[state] or self._stop[suffix]
            if not self._next[
                state
            ]:  # a whole stop string, met where it does not count: no longer a beginning
                self.num_held[state] = self.num_held[suffix]

    def _longest_suffix(self, parent: int, char: str) -> int:
        state = parent
        while state:
            state = self._fallback[state]
            if char in self._next[state]:
                return self._next[state][char]
        return 0


class _PieceRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a decoder makes a token's own bytes, read from its description."""

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    dropped_at_start: str | None = None
    """Metaspace: the character that is dropped, instead of replaced, in a text's first token."""
    stripped_at_start: str | None = None
    """Strip: what is taken off the beginning of the text, once."""


class _PieceTable(dict[int, str | bytes]):
    """The text of each token; its bytes where they are not characters by themselves. Filled on demand."""

    def __init__(self, tokenizer: TokenTable, rules: _PieceRules, skipped: frozenset[int]) -> None:
        self.rules = rules
        self._tokenizer = tokenizer
        self._skipped = skipped

    def is_visible(self, token_id: int) -> bool:
        return token_id not in self._skipped and self._tokenizer.id_to_token(token_id) is not None

    def first_piece(self, token_id: int) -> str | bytes:
        """The piece of a token that is the first of its text."""
        dropped = self.rules.dropped_at_start
        if dropped is None:
            return self[token_id]
        return (self._tokenizer.id_to_token(token_id) or "").replace(dropped, "")

    def __missing__(self, token_id: int) -> str | bytes:
        token = self._tokenizer.id_to_token(token_id) if token_id not in self._skipped else None
        piece = self[token_id] = "" if token is None else self._piece(token)
        return piece

    def _piece(self, token: str) -> str | bytes:
        if self.rules.byte_level:
            return _text_if_possible(_byte_level_bytes(token))
        for pattern, content in self.rules.replacements:
            token = token.replace(pattern, content)
        if self.rules.byte_fallback and token in _BYTE_FALLBACK_TOKENS:
            return _text_if_possible(bytes.fromhex(token[3:5]))
        return token


class _PieceDecoder:
    """Decodes by concatenating tokens' bytes; the state is the beginning of an unfinished character."""

    __slots__ = ("_at_start", "_pending", "_pieces")

    def __init__(self, pieces: _PieceTable, prompt_token_ids: Sequence[int]) -> None:
        self._pieces = pieces
        self._at_start = not any(map(pieces.is_visible, reversed(prompt_token_ids)))
        self._pending = _unfinished_bytes(pieces[token_id] for token_id in reversed(prompt_token_ids))

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def feed(self, token_id: int) -> str:
        if self._at_start:
            return self._feed_first(token_id)
        return self._append(self._pieces[token_id])

    def flush(self) -> str:
        pending, self._pending = self._pending, b""
        if self._pieces.rules.byte_fallback:  # which replaces each byte, not what could have been a character
            return _REPLACEMENT_CHARACTER * len(pending)
        return pending.decode(errors="replace")

    def _feed_first(self, token_id: int) -> str:
        if not self._pieces.is_visible(token_id):
            return ""
        rules = self._pieces.rules
        text = self._append(self._pieces.first_piece(token_id))
        # What is stripped is stripped from the text, so it waits for the first character.
        self._at_start = rules.stripped_at_start is not None and not text
        return text.removeprefix(rules.stripped_at_start or "")

    def _append(self, piece: str | bytes) -> str:
        if isinstance(piece, str):
            if self._pending and piece:
                return self.flush() + piece
            return piece
        data = self._pending + piece
        text, num_consumed = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[num_consumed:]
        return text


class _WindowDecoder:
    """Decodes by comparing the text of the last tokens with and without the new ones, for any decoder.

    Exact where a token's text depends on a few neighbours only and characters end with tokens now and then.
    """

    def __init__(
        self, tokenizer: TokenTable, skipped: frozenset[int], prompt_token_ids: Sequence[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._window = self._prompt_window(prompt_token_ids)
        self._num_read = len(self._window)
        self._read_text = self._decode(self._window)

    @property
    def num_pending(self) -> int:
        return len(self._window) - self._num_read

    def feed(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT_CHARACTER) and self.num_pending < _UNDECODED_TOKENS_MAX:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        return self._advance(self._decode(self._window)) if self.num_pending else ""

    def _advance(self, text: str) -> str:
        new_text = text[len(self._read_text) :]
        del self._window[: self._num_read]
        self._num_read = len(self._window)
        self._read_text = self._decode(self._window)
        return new_text

    def _prompt_window(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """The prompt's last tokens; more of them where the window would begin inside of a character.

        Skipped tokens never enter the window: one made of them alone would look like the start of a text.
        """
        size = _PROMPT_WINDOW_TOKENS
        while True:
            window = [token_id for token_id in prompt_token_ids[-size:] if token_id not in self._skipped]
            begins_well = not self._decode(window).startswith(_REPLACEMENT_CHARACTER)
            if size >= len(prompt_token_ids) or (begins_well and len(window) >= _PROMPT_WINDOW_TOKENS):
                return window
            size *= 2

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def _piece_rules(spec: Mapping[str, Any] | None) -> _PieceRules | None:
    """How to decode token by token; None where a token's text depends on more than the token."""
    if spec is None:
        return None
    steps = list(spec["decoders"]) if spec["type"] == "Sequence" else [spec]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _PieceRules(byte_level=True)
    if kinds == ["Metaspace"]:
        at_start = None if steps[0].get("prepend_scheme") == "never" else steps[0]["replacement"]
        return _PieceRules(replacements=((steps[0]["replacement"], " "),), dropped_at_start=at_start)
    return _sentencepiece_rules(steps, kinds)


def _sentencepiece_rules(steps: list[Mapping[str, Any]], kinds: list[str]) -> _PieceRules | None:
    """`Replace* ByteFallback? Fuse Strip?`, as converted from sentencepiece (Llama 2, Mistral, Gemma)."""
    replacements = []
    while kinds and kinds[0] == "Replace" and "String" in steps[0]["pattern"]:
        replacements.append((steps[0]["pattern"]["String"], steps[0]["content"]))
        steps, kinds = steps[1:], kinds[1:]
    strip = steps[-1] if kinds and kinds[-1] == "Strip" else None
    if strip is not None and (strip["start"] > 1 or strip["stop"]):
        return None
    if kinds[: len(kinds) - (strip is not None)] not in (["ByteFallback", "Fuse"], ["Fuse"]):
        return None
    return _PieceRules(
        byte_fallback=kinds[0] == "ByteFallback",
        replacements=tuple(replacements),
        stripped_at_start=strip["content"] if strip is not None and strip["start"] else None,
    )


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones stand for themselves, others for one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(moved)}


_BYTE_LEVEL_ALPHABET = _byte_level_alphabet()
_BYTE_FALLBACK_TOKENS = frozenset(f"<0x{byte:02{case}}>" for byte in range(0x100) for case in "Xx")


def _byte_level_bytes(token: str) -> bytes:
    """A token outside of the alphabet, such as an added one with a blank, stands for its own text."""
    try:
        return bytes([_BYTE_LEVEL_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()


def _text_if_possible(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _unfinished_bytes(pieces_backwards: Iterable[str | bytes]) -> bytes:
    """The beginning of a character that a text ends with, given its pieces from the last to the first."""
    end = b""
    for piece in pieces_backwards:
        if len(end) >= 3 or (isinstance(piece, str) and piece):
            break
        if isinstance(piece, bytes):
            end = piece + end
    return end[codecs.utf_8_decode(end, "replace", False)[1] :]
