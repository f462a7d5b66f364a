"""The compiler of grammars in a process of its own, where a source that ends the process costs nobody else anything."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from pageant.actors.grammar.compiling import Compiler
from pageant.actors.grammar.errors import GrammarError, GrammarKills
from pageant.actors.runtime.isolation import IsolatedDeath, IsolatedLimits, Isolation
from pageant.models.errors import CheckpointError
from pageant.protocol.structured_outputs import StructuredOutputsParams

KILLERS_MAX = 1024
"""Sources that ended a process and are remembered; the oldest are forgotten."""


class IsolatedTrial:
    """Compiles each source in a process of its own first, and takes its first mask there.

    Args:
        path: the tokenizer's folder.
        vocab_size, end_tokens: the model's.
        seconds: a source that takes longer is refused.
        killers: those that ended a process of a former life; see the attribute.
    """

    opener: ClassVar[str] = f"{__name__}:open_compiler"
    """The function that makes the compiler in such a process."""

    def __init__(
        self,
        path: Path,
        vocab_size: int,
        end_tokens: Sequence[int],
        seconds: float,
        killers: Mapping[str, str],
    ) -> None:
        argument = json.dumps([str(path), vocab_size, list(end_tokens)])
        self._isolation = Isolation(self.opener, argument, IsolatedLimits(seconds=seconds))
        self.killers = dict(killers)
        """Reasons to refuse sources that ended a process, by their hashes in hexadecimal; the oldest first."""

    def check(self, asked: StructuredOutputsParams) -> None:
        """Return when the source has been compiled once. Blocks; may be called by several threads.

        Raises:
            GrammarKills: it ended the process.
            GrammarError: it cannot be compiled, or ended the process before.
        """
        data = msgspec.msgpack.encode(asked)
        name = hashlib.blake2b(data, digest_size=16).hexdigest()
        if (reason := self.killers.get(name)) is not None:
            raise GrammarError(reason)
        try:
            refused = self._isolation.call(data)
        except IsolatedDeath as error:
            others = list(self.killers.items())[-(KILLERS_MAX - 1) :]
            reason = f"it cannot be compiled: {error}"
            self.killers = dict(others) | {name: reason}
            raise GrammarKills(reason) from None
        except OSError as error:  # which is no fault of the source
            raise GrammarError(f"it cannot be compiled now: {error}") from None
        if refused:
            raise GrammarError(refused.decode())

    def prepare(self) -> None:
        """Start a process that waits for the first source. Raises `OSError` where none can be started."""
        self._isolation.prepare()

    def close(self) -> None:
        """End the processes."""
        self._isolation.close()


def open_compiler(argument: str) -> Callable[[bytes], bytes]:
    """Return the function that compiles an encoded source; its answer is why that cannot be done, or empty."""
    path, vocab_size, end_tokens = json.loads(argument)
    try:
        compiler = Compiler.from_checkpoint(Path(path), vocab_size, end_tokens)
    except (GrammarError, CheckpointError) as error:  # no source can be followed with this model
        refusal = str(error).encode(errors="backslashreplace")
        return lambda data: refusal

    def compile_source(data: bytes) -> bytes:
        try:
            compiler.compile(msgspec.msgpack.decode(data, type=StructuredOutputsParams))
        except GrammarError as error:
            return str(error).encode(errors="backslashreplace")
        return b""

    return compile_source
