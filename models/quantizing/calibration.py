"""Texts of calibration: a file of plain text, or of JSON lines with texts, conversations or token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pageant.models.errors import CheckpointError
from pageant.models.tokenization import Tokenization
from pageant.models.tokenizer_files import TokenizerError
from pageant.protocol.errors import ArgumentError, PageantError

__all__ = ["Calibration", "read_sequences"]

_LINES = (".jsonl", ".ndjson")
_CHARACTERS = 32
"""Of a plain text, no more is read than so many characters for each token that is wanted."""
_TEXTS = ("text", "prompt")
_IDS = ("token_ids", "input_ids", "prompt_token_ids")
_TOKENS_MIN = 2
_EXPECTED = f"a JSON object with {', '.join(_TEXTS)}, messages or {_IDS[0]}"


@dataclass(frozen=True, slots=True)
class Calibration:
    """The file of calibration, and how much of it is read."""

    file: Path
    sequences: int = 128
    """The most sequences."""
    length: int = 1024
    """The most tokens of one."""

    def __post_init__(self) -> None:
        for name, value in (("sequences", self.sequences), ("sequence-length", self.length)):
            if value < 1:
                raise ArgumentError(name, f"found {value}; expected a whole number from 1 up")
        if not self.file.is_file():
            found = "a folder" if self.file.is_dir() else "no such file"
            raise ArgumentError("calibrate", f"{self.file}: {found}; expected a file of text or JSON lines")


def read_sequences(calibration: Calibration, checkpoint: Path, vocab_size: int) -> list[list[int]]:
    """Return token ids of some sequences, none of them longer than the calibration says.

    A plain text is cut into sequences, each beginning as the tokenizer begins a text. Of JSON lines, each is a
    sequence, cut at its end.

    Raises ArgumentError for a file that is empty, no text, or has a line that is none of those expected, and
    CheckpointError where a tokenizer is needed and the checkpoint has none.
    """
    try:
        with calibration.file.open(encoding="utf-8") as file:
            if calibration.file.suffix.lower() in _LINES:
                found = list(
                    islice(_of_lines(file, calibration, checkpoint, vocab_size), calibration.sequences)
                )
            else:
                wanted = calibration.sequences * calibration.length * _CHARACTERS
                found = _of_text(file.read(wanted), calibration, _tokenizer(checkpoint))
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError("calibrate", f"{calibration.file}: {error}; expected UTF-8 text") from error
    if sum(map(len, found)) < _TOKENS_MIN:
        raise ArgumentError("calibrate", f"{calibration.file}: nothing in it; expected texts")
    _check_ids(found, calibration.file, vocab_size)
    return found


def _check_ids(sequences: Sequence[Sequence[int]], file: Path, vocab_size: int) -> None:
    largest = max(map(max, sequences))
    if largest >= vocab_size:
        raise ArgumentError(
            "calibrate",
            f"{file}: token {largest}; expected tokens below {vocab_size}, the model's vocabulary",
        )


def _tokenizer(checkpoint: Path) -> Tokenization:
    return Tokenization.from_checkpoint(checkpoint)


def _of_text(text: str, calibration: Calibration, tokenizer: Tokenization) -> list[list[int]]:
    if not text.strip():
        return []
    beginning = tokenizer.encode("")[: calibration.length - 1]
    ids = tokenizer.encode(text, add_special_tokens=False)
    size = calibration.length - len(beginning)
    cut = [beginning + ids[start : start + size] for start in range(0, len(ids), size)]
    return cut[: calibration.sequences]


def _of_lines(
    lines: Iterator[str], calibration: Calibration, checkpoint: Path, vocab_size: int
) -> Iterator[list[int]]:
    tokenizer: Tokenization | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{calibration.file}, line {number}"
        entry = _parsed(line, place)
        ids = next((entry[key] for key in _IDS if key in entry), None)
        if ids is None:
            tokenizer = tokenizer or _tokenizer(checkpoint)
            ids = _encoded(entry, tokenizer, place)
        elif not isinstance(ids, list) or not all(type(one) is int and 0 <= one < vocab_size for one in ids):
            raise ArgumentError("calibrate", f"{place}: {ids!r:.60}; expected ids below {vocab_size}")
        if ids:
            yield ids[: calibration.length]


def _parsed(line: str, place: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ArgumentError("calibrate", f"{place}: no JSON ({error}); expected {_EXPECTED}") from None
    if not isinstance(entry, dict):
        raise ArgumentError("calibrate", f"{place}: a JSON {type(entry).__name__}; expected {_EXPECTED}")
    return entry


def _encoded(entry: dict[str, Any], tokenizer: Tokenization, place: str) -> list[int]:
    text = next((entry[key] for key in _TEXTS if isinstance(entry.get(key), str)), None)
    if text is not None:
        return tokenizer.encode(text)
    messages = entry.get("messages")
    if not isinstance(messages, list):
        raise ArgumentError("calibrate", f"{place}: the keys {list(entry)!r:.100}; expected {_EXPECTED}")
    try:
        return tokenizer.encode_chat(tokenizer.fit_chat(messages), add_generation_prompt=False)
    except (CheckpointError, TokenizerError):
        raise
    except (PageantError, ValueError, TypeError, KeyError) as error:
        raise ArgumentError("calibrate", f"{place}: {error}; expected a conversation") from error
