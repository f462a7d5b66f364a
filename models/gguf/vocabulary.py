"""The vocabulary in a GGUF file's metadata: tokens with their kinds and scores, merges, and tokens with a role.

Knows neither torch nor the tokenizers library.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pageant.models.gguf.metadata import Metadata

__all__ = ["TokenKind", "Vocabulary", "read_vocabulary"]

_END_TEXTS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>"),
        *("<|end_of_text|>", "<|eom_id|>", "<EOT>", "_<EOT>", "</s>", "<eos>", "<|END_OF_TURN_TOKEN|>"),
        *("<｜end▁of▁sentence｜>", "<end_of_utterance>"),
    }
)
"""Tokens that end an answer in every model that has them: files name one of them, and some models use two."""
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # as files spell it
    "mask_token": "mask_token_id",
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class TokenKind(IntEnum):
    """Kinds of tokens, by their numbers in a file."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model, and how texts are cut into them."""

    model: str
    """`gpt2` for byte-level BPE, `llama` for SentencePiece."""
    pre: str | None
    """The rule by which texts are split before merges, by llama.cpp's name."""
    tokens: list[str]
    kinds: npt.NDArray[np.int32]
    """int32 [len(tokens)]."""
    scores: npt.NDArray[np.float32] | None
    """float32 [len(tokens)]; higher ones are merged first."""
    merges: list[str] | None
    roles: dict[str, int]
    """Ids of tokens by transformers' names for their roles (`bos_token`)."""
    named_ends: tuple[int, ...]
    """Tokens that the file says to end an answer."""
    add_bos: bool | None
    add_eos: bool | None
    add_space: bool
    """Whether a space is put before a text (SentencePiece)."""
    architecture: str

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer: those that the file names, and others that are known by their texts."""
        marked = np.flatnonzero((self.kinds == TokenKind.CONTROL) | (self.kinds == TokenKind.USER_DEFINED))
        known = [int(number) for number in marked if self.tokens[int(number)] in _END_TEXTS]
        texts = {self.tokens[number] for number in known}
        if {"<|return|>", "<|call|>"} <= texts:  # gpt-oss: <|end|> ends a message, and another may follow
            known = [number for number in known if self.tokens[number] != "<|end|>"]
        return tuple(dict.fromkeys((*self.named_ends, *known)))


def read_vocabulary(metadata: Metadata) -> Vocabulary | None:
    """Return a file's vocabulary; None where it has none.

    Raises CheckpointError for parts that do not belong together.
    """
    array = metadata.array("tokenizer.ggml.tokens")
    if array is None:
        return None
    tokens = array.texts()
    kinds = _numbers(metadata, "tokenizer.ggml.token_type", len(tokens))
    scores = _numbers(metadata, "tokenizer.ggml.scores", len(tokens))
    merges = metadata.array("tokenizer.ggml.merges")
    roles = {role: _token(metadata, key, len(tokens)) for role, key in _ROLES.items()}
    ends = (_token(metadata, key, len(tokens)) for key in _END_KEYS)
    adds = {
        name: metadata.flag(f"tokenizer.ggml.{name}", False) if f"tokenizer.ggml.{name}" in metadata else None
        for name in ("add_bos_token", "add_eos_token")
    }
    return Vocabulary(
        model=metadata.text("tokenizer.ggml.model"),
        pre=metadata.text("tokenizer.ggml.pre") if "tokenizer.ggml.pre" in metadata else None,
        tokens=tokens,
        kinds=np.full(len(tokens), TokenKind.NORMAL, np.int32) if kinds is None else kinds.astype(np.int32),
        scores=None if scores is None else scores.astype(np.float32),
        merges=None if merges is None else merges.texts(),
        roles={role: number for role, number in roles.items() if number is not None},
        named_ends=tuple(number for number in ends if number is not None),
        add_bos=adds["add_bos_token"],
        add_eos=adds["add_eos_token"],
        add_space=metadata.flag("tokenizer.ggml.add_space_prefix", True),
        architecture=metadata.architecture,
    )


def _numbers(metadata: Metadata, key: str, count: int) -> npt.NDArray[np.generic] | None:
    """Numbers of an array, [count]; None where there is no such key."""
    array = metadata.array(key)
    if array is None:
        return None
    if len(array) != count:
        raise metadata.wrong(key, f"an array of {len(array)}", f"one number for each of {count} tokens")
    numbers: npt.NDArray[np.generic] = array.numbers()
    return numbers


def _token(metadata: Metadata, key: str, count: int) -> int | None:
    """A token's id; None where there is no such key, or it says that there is no such token."""
    full = f"tokenizer.ggml.{key}"
    value = metadata.get(full)
    if value is None or value in (-1, 0xFFFFFFFF):
        return None
    number = metadata.count(full, minimum=0)
    if number >= count:
        raise metadata.wrong(full, str(number), f"a token below {count}")
    return number
