"""An answer as a row of blocks (reasoning, text, calls), for APIs that tell where each begins and ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from pageant.actors.parsers.base import CallPiece, Said

Kind = Literal["reasoning", "text", "call"]
Step = Literal["begins", "goes on", "ends"]


@dataclass
class Block:
    """A content block: its index, and its content so far.

    A call has an id and a name; a custom tool's call holds a text.
    """

    kind: Kind
    place: int
    pieces: list[str] = field(default_factory=list)
    id: str = ""
    name: str = ""
    is_custom: bool = False

    @property
    def text(self) -> str:
        """Return the whole text; of a call, its arguments."""
        return "".join(self.pieces)


class Blocks:
    """The blocks of one choice. At most one is open, the last."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._call: int | None = None  # the number of the call that is open
        self._is_open = False

    def feed(self, said: Said) -> Iterator[tuple[Step, Block, str]]:
        """Yield the steps by which a parsed delta changes the blocks, with the new text of each.

        A continuation of the open call comes first: a delta that ends a call may also hold what follows it.
        """
        open_call = self._call if self._is_open else None
        for call in said.calls:
            if call.number == open_call:
                yield from self._add_call(call)
        if said.reasoning:
            yield from self._add("reasoning", said.reasoning)
        if said.content:
            yield from self._add("text", said.content)
        for call in said.calls:
            if call.number != open_call:
                yield from self._add_call(call)

    def end(self) -> Iterator[tuple[Step, Block, str]]:
        """The end of the row, in which there is at least one block."""
        if not self.all:
            yield from self._add("text", "")
        yield from self._close()

    def _add_call(self, call: CallPiece) -> Iterator[tuple[Step, Block, str]]:
        return self._add(
            "call", call.arguments, call.number, call.id or "", call.name or "", is_custom=call.is_custom
        )

    def _add(
        self,
        kind: Kind,
        text: str,
        call: int | None = None,
        id: str = "",
        name: str = "",
        *,
        is_custom: bool = False,
    ) -> Iterator[tuple[Step, Block, str]]:
        if not self._is_open or self.all[-1].kind != kind or self._call != call:
            yield from self._close()
            self.all.append(Block(kind, len(self.all), [], id, name, is_custom))
            self._call, self._is_open = call, True
            yield "begins", self.all[-1], ""
        if text:
            self.all[-1].pieces.append(text)
            yield "goes on", self.all[-1], text

    def _close(self) -> Iterator[tuple[Step, Block, str]]:
        if self._is_open:
            self._is_open = False
            yield "ends", self.all[-1], ""
