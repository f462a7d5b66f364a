"""What goes to one frontend: one numbered `OutputBatch` per step, merged while the frontend is slow."""

from __future__ import annotations

from dataclasses import dataclass, field

from pageant.actors.runtime.streams import Outgoing
from pageant.protocol.arrays import int32
from pageant.protocol.serving import Finished, OutputBatch


@dataclass(slots=True)
class _Row:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finished: Finished | None = None


class Delivery:
    """Collects rows for a frontend until it has credit for a batch. Nothing is dropped."""

    def __init__(self) -> None:
        self.stream: Outgoing[OutputBatch] = Outgoing("outputs")
        self._rows: dict[str, _Row] = {}

    def add(self, request_id: str, text: str, token_ids: list[int], finished: Finished | None) -> None:
        """The next output of a request."""
        row = self._rows.setdefault(request_id, _Row())
        row.text += text
        row.token_ids += token_ids
        row.finished = row.finished or finished

    def take(self) -> OutputBatch | None:
        """The batch that is to be sent now: None without rows, or without credit."""
        if not self._rows or not self.stream.open:
            return None
        rows, self._rows = self._rows, {}
        ended = {i: row.finished for i, row in enumerate(rows.values()) if row.finished is not None}
        batch = OutputBatch(
            number=0,
            request_ids=tuple(rows),
            texts=tuple(row.text for row in rows.values()),
            counts=int32([len(row.token_ids) for row in rows.values()]),
            token_ids=int32([token for row in rows.values() for token in row.token_ids]),
            finished=ended,
        )
        return self.stream.number(batch)
