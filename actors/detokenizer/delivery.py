"""Delivery of outputs to one frontend: one numbered `OutputBatch` per step, merged while the frontend is slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pageant.actors.runtime.streams import Outgoing
from pageant.protocol.arrays import int32
from pageant.protocol.logprobs import RowLogprobs, join_rows
from pageant.protocol.serving import Finished, OutputBatch, WeightVersionSpans


@dataclass(slots=True)
class _Row:
    """Outputs of one request that are not sent yet."""

    request_id: str
    text_start: int
    token_start: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finished: Finished | None = None
    weight_versions: WeightVersionSpans = ()
    logprobs: list[RowLogprobs] = field(default_factory=list)
    prompt_logprobs: list[RowLogprobs] = field(default_factory=list)


class Delivery:
    """Collects rows for a frontend until it has credit for a batch. A slow frontend's rows are merged.

    Args:
        text_of: returns a single token's text.
        bytes_of: returns a single token's bytes where they are no whole characters; else None.
    """

    def __init__(self, text_of: Callable[[int], str], bytes_of: Callable[[int], bytes | None]) -> None:
        self._text_of, self._bytes_of = text_of, bytes_of
        self.stream: Outgoing[OutputBatch] = Outgoing("outputs")
        # Rows by the scheduler's serials: a frontend may submit a request twice.
        self._rows: dict[int, _Row] = {}
        self._token_texts: dict[int, str] = {}

    def add(
        self,
        serial: int,
        request_id: str,
        text: str,
        token_ids: list[int],
        finished: Finished | None,
        text_start: int,
        token_start: int,
        weight_versions: WeightVersionSpans = (),
    ) -> None:
        """Add the next output of a request, which begins at these positions of its whole output.

        Args:
            weight_versions: all of the request's so far, where its frontend does not have them yet.
        """
        row = self._rows.get(serial)
        if row is None:
            row = self._rows[serial] = _Row(request_id, text_start, token_start)
        row.text += text
        row.token_ids += token_ids
        row.finished = row.finished or finished
        row.weight_versions = weight_versions or row.weight_versions

    def add_logprobs(
        self, serial: int, logprobs: RowLogprobs | None, prompt_logprobs: RowLogprobs | None, *, texts: bool
    ) -> None:
        """Add log-probabilities of the output that was just added, with or without the texts of their tokens."""
        row = self._rows[serial]
        row.logprobs += [logprobs] if logprobs is not None else []
        row.prompt_logprobs += [prompt_logprobs] if prompt_logprobs is not None else []
        for piece in (logprobs, prompt_logprobs):
            if texts and piece is not None:
                tokens = {*piece.token_ids.tolist(), *piece.top_ids.tolist()}
                self._token_texts.update((token, self._text_of(token)) for token in tokens)

    def drop(self) -> None:
        """Drop output that was not sent: its frontend submits the requests again."""
        self._rows, self._token_texts = {}, {}

    def take(self) -> OutputBatch | None:
        """Return the batch to send now; None without rows, or without credit."""
        if not self._rows or not self.stream.open:
            return None
        rows, self._rows = list(self._rows.values()), {}
        texts, self._token_texts = self._token_texts, {}
        batch = OutputBatch(
            number=0,
            request_ids=tuple(row.request_id for row in rows),
            texts=tuple(row.text for row in rows),
            text_starts=int32([row.text_start for row in rows]),
            token_starts=int32([row.token_start for row in rows]),
            counts=int32([len(row.token_ids) for row in rows]),
            token_ids=int32([token for row in rows for token in row.token_ids]),
            finished={i: row.finished for i, row in enumerate(rows) if row.finished is not None},
            logprobs=join_rows((i, piece) for i, row in enumerate(rows) for piece in row.logprobs),
            prompt_logprobs=join_rows(
                (i, piece) for i, row in enumerate(rows) for piece in row.prompt_logprobs
            ),
            token_texts=texts,
            token_bytes={token: raw for token in texts if (raw := self._bytes_of(token)) is not None},
            weight_versions={i: row.weight_versions for i, row in enumerate(rows) if row.weight_versions},
        )
        return self.stream.number(batch)
