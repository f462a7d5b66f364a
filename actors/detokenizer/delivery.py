"""What goes to one frontend: one numbered `OutputBatch` per step, merged while the frontend is slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pageant.actors.runtime.streams import Outgoing
from pageant.protocol.arrays import int32
from pageant.protocol.logprobs import Piece, join
from pageant.protocol.serving import Finished, OutputBatch


@dataclass(slots=True)
class _Row:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finished: Finished | None = None
    logprobs: list[Piece] = field(default_factory=list)
    prompt_logprobs: list[Piece] = field(default_factory=list)


class Delivery:
    """Collects rows for a frontend until it has credit for a batch. Nothing is dropped.

    Args:
        text_of: a single token's text.
    """

    def __init__(self, text_of: Callable[[int], str]) -> None:
        self._text_of = text_of
        self.stream: Outgoing[OutputBatch] = Outgoing("outputs")
        self._rows: dict[str, _Row] = {}
        self._token_texts: dict[int, str] = {}

    def add(self, request_id: str, text: str, token_ids: list[int], finished: Finished | None) -> None:
        """The next output of a request."""
        row = self._rows.setdefault(request_id, _Row())
        row.text += text
        row.token_ids += token_ids
        row.finished = row.finished or finished

    def add_logprobs(
        self, request_id: str, logprobs: Piece | None, prompt_logprobs: Piece | None, *, texts: bool
    ) -> None:
        """What belongs to the output that was just added; with the texts of the tokens in it, or without."""
        row = self._rows[request_id]
        row.logprobs += [logprobs] if logprobs is not None else []
        row.prompt_logprobs += [prompt_logprobs] if prompt_logprobs is not None else []
        for piece in (logprobs, prompt_logprobs):
            if texts and piece is not None:
                tokens = {*piece.token_ids.tolist(), *piece.top_ids.tolist()}
                self._token_texts.update((token, self._text_of(token)) for token in tokens)

    def take(self) -> OutputBatch | None:
        """The batch that is to be sent now: None without rows, or without credit."""
        if not self._rows or not self.stream.open:
            return None
        rows, self._rows = self._rows, {}
        texts, self._token_texts = self._token_texts, {}
        ended = {i: row.finished for i, row in enumerate(rows.values()) if row.finished is not None}
        batch = OutputBatch(
            number=0,
            request_ids=tuple(rows),
            texts=tuple(row.text for row in rows.values()),
            counts=int32([len(row.token_ids) for row in rows.values()]),
            token_ids=int32([token for row in rows.values() for token in row.token_ids]),
            finished=ended,
            logprobs=join((i, piece) for i, row in enumerate(rows.values()) for piece in row.logprobs),
            prompt_logprobs=join(
                (i, piece) for i, row in enumerate(rows.values()) for piece in row.prompt_logprobs
            ),
            token_texts=texts,
        )
        return self.stream.number(batch)
