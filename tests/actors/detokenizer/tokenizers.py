"""Tokenizers with decoders of several kinds, and random outputs whose text is known."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pageant.models.tokenization import Tokenization

SPECIAL = ("<s>", "</s>")
WORDS = ("a", "b", "ab", "ba", "aab", " a", " b", "  ", "\n", "the", " the", "é", "✓", "漢", "🙂")


class Unit(NamedTuple):
    """Tokens that make one piece of text, none of it before the last of them."""

    text: str
    tokens: tuple[str, ...]


class Kind(NamedTuple):
    """A tokenizer with a decoder of some kind, and units to write output with."""

    tokenization: Tokenization
    units: tuple[Unit, ...]

    def ids(self, *tokens: str) -> list[int]:
        ids = [self.tokenization._backend.token_to_id(token) for token in tokens]
        return [token_id for token_id in ids if token_id is not None]


def kind(decoder: decoders.Decoder | None, units: Sequence[Unit], extra: Sequence[str] = ()) -> Kind:
    """Make a tokenizer whose words are the tokens of some units."""
    tokens = [*SPECIAL, *(token for unit in units for token in unit.tokens), *extra]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<s>"))
    if decoder is not None:
        backend.decoder = decoder
    backend.add_special_tokens(list(SPECIAL))
    return Kind(Tokenization(backend), (*units, *(Unit(token, (token,)) for token in SPECIAL)))


def byte_level() -> Kind:
    """A byte-level tokenizer, with characters whole, byte by byte, and cut in two."""
    mapping = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    units = []
    for word in WORDS:
        mapped = mapping.pre_tokenize_str(word)[0][0]  # one character for each byte
        units.append(Unit(word, (mapped,)))
        if not word.isascii():
            units += [Unit(word, tuple(mapped)), Unit(word, (mapped[:1], mapped[1:]))]
    return kind(decoders.ByteLevel(), units, sorted(pre_tokenizers.ByteLevel.alphabet()))


def sentencepiece_units() -> list[Unit]:
    """Words with ▁ for a blank, and single characters also as bytes."""
    units = [Unit(word, (word.replace(" ", "▁"),)) for word in WORDS]
    in_bytes = {word: tuple(f"<0x{byte:02X}>" for byte in word.encode()) for word in WORDS if len(word) == 1}
    return units + [Unit(word, tokens) for word, tokens in in_bytes.items()]


def byte_fallback(strip: int) -> Kind:
    """A SentencePiece tokenizer with byte fallback, which strips some blanks from the start."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    stripping = [decoders.Strip(" ", strip, 0)] if strip else []
    every_byte = [f"<0x{byte:02X}>" for byte in range(256)]
    return kind(decoders.Sequence(steps + stripping), sentencepiece_units(), every_byte)


def metaspace() -> Kind:
    """A Metaspace tokenizer, without bytes."""
    return kind(decoders.Metaspace(), [unit for unit in sentencepiece_units() if "<0x" not in unit.tokens[0]])


def unknown_kind() -> Kind:
    """Byte fallback that is not recognised (two blanks stripped), so that it is decoded through a window."""
    return byte_fallback(strip=2)


KINDS = {
    "byte level": byte_level(),
    "llama 2": byte_fallback(strip=1),
    "gemma": byte_fallback(strip=0),
    "metaspace": metaspace(),
}


class Case(NamedTuple):
    """One request: its prompt, its output, and the text that each output token makes available."""

    prompt: list[int]
    output: list[int]
    text: str
    lengths: list[int]
    """Characters of `text` that are complete after each output token."""


def draw_case(data: st.DataObject, kind: Kind, skip_special_tokens: bool) -> Case:
    """Draw a prompt and an output, with the text that a whole decoding makes of it."""
    units = st.lists(st.sampled_from(kind.units), max_size=25)
    prompt = kind.ids(*(token for unit in data.draw(units) for token in unit.tokens))
    drawn = data.draw(units)
    output, shown, counts = [], "", []
    for unit in drawn:
        output += kind.ids(*unit.tokens)
        counts += [len(shown)] * (len(unit.tokens) - 1)
        shown += "" if skip_special_tokens and unit.text in SPECIAL else unit.text
        counts.append(len(shown))
    decode = kind.tokenization.decode
    before = decode(prompt, skip_special_tokens=skip_special_tokens)
    whole = decode(prompt + output, skip_special_tokens=skip_special_tokens)
    text = whole.removeprefix(before)
    assert before + text == whole and shown.endswith(text)  # the decoder may drop blanks at the start
    dropped = len(shown) - len(text)
    return Case(prompt, output, text, [max(0, count - dropped) for count in counts])


def draw_chunks(data: st.DataObject, output: list[int]) -> list[list[int]]:
    """Draw a cut of an output into chunks, some of them empty."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(output)), max_size=len(output))))
    return [output[start:end] for start, end in zip([0, *cuts], [*cuts, len(output)], strict=True)]
