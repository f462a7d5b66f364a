"""Files that actors read when they start are read once for all their lives in all runs: their content is the same every
time, and took up a tenth of a run. In simulated time they are as slow as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pageant.actors.grammar.compiling import Compiler
from pageant.models.tokenization import Tokenization


@cache
def _tokenization(path: Path) -> Tokenization:
    return Tokenization.from_checkpoint(path)


@cache
def _compiler(path: Path, vocab_size: int, end_tokens: tuple[int, ...]) -> Compiler:
    return Compiler(_tokenization(path), vocab_size, end_tokens)


@contextmanager
def read_once(path: Path, vocab_size: int, end_tokens: tuple[int, ...]) -> Iterator[None]:
    """Give actors this checkpoint's tokenizer, and the compiler of its grammars, while the context lasts."""
    tokenization, compiler = _tokenization(path), _compiler(path, vocab_size, end_tokens)

    def given_tokenization(asked: Path, **_: Any) -> Tokenization:
        assert asked == path, f"{asked} is not simulated"
        return tokenization

    with (
        patch.object(Tokenization, "from_checkpoint", given_tokenization),
        patch.object(Compiler, "from_checkpoint", lambda *_: compiler),
    ):
        yield
