"""The added tokens of a tokenizer, read without loading it."""

from __future__ import annotations

from pathlib import Path

import msgspec

__all__ = ["read_added_tokens"]


class _Token(msgspec.Struct):
    id: int
    content: str


class _File(msgspec.Struct):
    added_tokens: list[_Token] = msgspec.field(default_factory=list)


class _Config(msgspec.Struct):
    added_tokens_decoder: dict[int, _Declared] = msgspec.field(default_factory=dict)


class _Declared(msgspec.Struct):
    content: str


def read_added_tokens(path: Path) -> dict[str, int]:
    """Return the ids of the tokens that stand for whole texts, such as `</think>`; none where no file says so."""
    tokens: dict[str, int] = {}
    try:
        if (file := path / "tokenizer_config.json").is_file():
            config = msgspec.json.decode(file.read_bytes(), type=_Config)
            tokens |= {one.content: number for number, one in config.added_tokens_decoder.items()}
        if (file := path / "tokenizer.json").is_file():
            added = msgspec.json.decode(file.read_bytes(), type=_File).added_tokens
            tokens |= {token.content: token.id for token in added}
    except msgspec.MsgspecError:  # who needs the tokenizer says what is wrong with it
        return {}
    return tokens
