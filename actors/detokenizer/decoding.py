"""Decoding of token ids to text, one stream at a time.

The text of a token depends on its neighbours: a character's bytes may be spread over several tokens, and the
first word loses its blank. Streams usually decode a window of the last tokens twice and take the difference
(vLLM, transformers, `tokenizers.decoders.DecodeStream`). The decoders of nearly all language models, byte-level
and sentencepiece with byte fallback, do not need that: their text is the concatenation of the tokens' own
bytes. Each token's bytes are therefore looked up once, and a stream keeps only the bytes of an unfinished
character: exact, and in constant time per token. A window is neither. A window of skipped special tokens loses
the blank after it. `DecodeStream`, otherwise as fast, decodes everything again for every byte that completes no
character. Any other decoder is served by a window.
"""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

_REPLACEMENT_CHARACTER = "\ufffd"
_PROMPT_WINDOW_TOKENS = 6
# The most tokens that a window waits for a complete character. Tokens may each end one character and begin another.
UNDECODED_TOKENS_MAX = 32


class TokenTable(Protocol):
    """The part of a tokenizer that detokenization needs; `pageant.models.tokenization.Tokenization` has it."""

    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def decoder_spec(self) -> Mapping[str, Any] | None:
        """Return the decoder as in tokenizer.json. None, or a kind unknown here, means to use `decode` alone."""

    def id_to_token(self, token_id: int, /) -> str | None: ...

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str: ...


class StreamDecoder(Protocol):
    """Decodes one request's tokens, without regard to stop strings."""

    @property
    def num_pending(self) -> int:
        """Return the number of bytes or tokens that are not text yet."""

    def feed(self, token_id: int) -> str: ...

    def feed_all(self, token_ids: Sequence[int]) -> str:
        """Decode tokens as if one by one."""

    def flush(self) -> str: ...


class Decoding:
    """Makes a decoder for each stream of one tokenizer's tokens."""

    def __init__(self, tokenizer: TokenTable) -> None:
        self._tokenizer = tokenizer
        rules = _piece_rules(tokenizer.decoder_spec)
        self._pieces: dict[bool, _PieceTable] = {}
        """By skip_special_tokens; empty where the decoder does not work token by token."""
        if rules is not None:
            self._pieces[False] = _PieceTable(tokenizer, rules, frozenset())
            self._pieces[True] = _PieceTable(tokenizer, rules, tokenizer.special_ids)

    def pieces(self, num_tokens: int) -> list[bytes] | None:
        """Return the bytes of the first `num_tokens` tokens, by id; None where the decoder does not work token
        by token.
        """
        if not self._pieces:
            return None
        pieces = (self._pieces[False][token] for token in range(num_tokens))
        return [piece.encode() if isinstance(piece, str) else piece for piece in pieces]

    def stream(
        self,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool = True,
    ) -> StreamDecoder:
        """Return a decoder for the output that continues a prompt.

        Where tokens are decoded one by one, there is never a blank between special ones.
        """
        if self._pieces:
            return _PieceDecoder(self._pieces[skip_special_tokens], prompt_token_ids)
        skipped = self._tokenizer.special_ids if skip_special_tokens else frozenset()
        return _WindowDecoder(self._tokenizer, skipped, prompt_token_ids, spaces_between_special_tokens)

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return a token's bytes if they are no whole characters; None for any other token."""
        piece = self._pieces[False][token_id] if self._pieces else ""
        return piece if isinstance(piece, bytes) else None


class _PieceRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules by which a decoder turns a token into bytes, read from its description."""

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    dropped_at_start: str | None = None
    """Metaspace: the character that is dropped, instead of replaced, in a text's first token."""
    stripped_at_start: str | None = None
    """Strip: the text that is removed from the beginning, once."""


class _PieceTable(dict[int, str | bytes]):
    """The text of each token, or its bytes where they are no whole characters. Filled on demand."""

    def __init__(self, tokenizer: TokenTable, rules: _PieceRules, skipped: frozenset[int]) -> None:
        self.rules = rules
        self._tokenizer = tokenizer
        self._skipped = skipped

    def is_visible(self, token_id: int) -> bool:
        return token_id not in self._skipped and self._tokenizer.id_to_token(token_id) is not None

    def first_piece(self, token_id: int) -> str | bytes:
        """Return the text or bytes of a token that is the first of its text."""
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
    """Decodes by concatenating tokens' bytes. Its state is the beginning of an unfinished character."""

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

    def feed_all(self, token_ids: Sequence[int]) -> str:
        if not (self._at_start or self._pending):
            try:
                return "".join(map(self._pieces.__getitem__, token_ids))  # type: ignore[arg-type]
            except TypeError:
                # Some tokens are bytes.
                pass
        return "".join([self.feed(token_id) for token_id in token_ids])

    def flush(self) -> str:
        pending, self._pending = self._pending, b""
        # Byte fallback replaces each byte, not each run that could have been a character.
        if self._pieces.rules.byte_fallback:
            return _REPLACEMENT_CHARACTER * len(pending)
        return pending.decode(errors="replace")

    def _feed_first(self, token_id: int) -> str:
        if not self._pieces.is_visible(token_id):
            return ""
        rules = self._pieces.rules
        text = self._append(self._pieces.first_piece(token_id))
        # The prefix is stripped from the text, not from a token, so that it waits for the first character.
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

    Exact where a token's text depends on a few neighbours only, and characters end with tokens now and then.
    """

    def __init__(
        self,
        tokenizer: TokenTable,
        skipped: frozenset[int],
        prompt_token_ids: Sequence[int],
        spaces_between_special_tokens: bool,
    ) -> None:
        self._joined = frozenset() if spaces_between_special_tokens else tokenizer.special_ids
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
        if token_id in self._joined and self._window and self._window[-1] in self._joined:
            text = self.flush() + self._decode([token_id])
            self._window, self._num_read, self._read_text = [token_id], 1, self._decode([token_id])
            return text
        self._window.append(token_id)
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT_CHARACTER) and self.num_pending < UNDECODED_TOKENS_MAX:
            return ""
        return self._advance(text)

    def feed_all(self, token_ids: Sequence[int]) -> str:
        return "".join([self.feed(token_id) for token_id in token_ids])

    def flush(self) -> str:
        return self._advance(self._decode(self._window)) if self.num_pending else ""

    def _advance(self, text: str) -> str:
        new_text = text[len(self._read_text) :]
        del self._window[: self._num_read]
        self._num_read = len(self._window)
        self._read_text = self._decode(self._window)
        return new_text

    def _prompt_window(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """Return the prompt's last tokens; more of them where the window would begin inside of a character.

        Skipped tokens never enter the window: a window of them alone would look like the start of a text.
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
    """Return the rules of decoding token by token; None where a token's text depends on more than the token."""
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
    """Return the rules of `Replace* ByteFallback? Fuse Strip?`, as converted from sentencepiece (Llama 2,
    Mistral, Gemma).
    """
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
    """Return GPT-2's characters for bytes: printable ones stand for themselves, others for one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(moved)}


_BYTE_LEVEL_ALPHABET = _byte_level_alphabet()
_BYTE_FALLBACK_TOKENS = frozenset(f"<0x{byte:02{case}}>" for byte in range(0x100) for case in "Xx")


def _byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a token. A token outside of the alphabet, such as an added one with a blank, is its
    own text.
    """
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
    """Return the beginning of a character that a text ends with, given its tokens' bytes from the last to the
    first.
    """
    end = b""
    for piece in pieces_backwards:
        if len(end) >= 3 or (isinstance(piece, str) and piece):
            break
        if isinstance(piece, bytes):
            end = piece + end
    return end[codecs.utf_8_decode(end, "replace", False)[1] :]
