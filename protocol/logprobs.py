"""Log-probabilities on their way from executors to frontends: columns in a message, pieces by row in between.

They are natural logarithms of what the model says, before any temperature, penalty or filter. A request that
does not ask for them costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from pageant.protocol.arrays import Float32Vector, Int32Vector

ALL = -1  # as a number of likeliest tokens: the whole vocabulary, as users of vLLM write it


class Logprobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of N tokens, by columns: token `token_ids[i]` of the message's row `rows[i]` has `logprobs[i]`, and the
    rank `ranks[i]` (from 1). The `counts[i]` likeliest at its place are next of `top_ids`, with `top`; or those of the
    request's `logprob_token_ids`, in their order.

    `rows` never falls; tokens of one row are in their order.
    """

    rows: Int32Vector
    token_ids: Int32Vector
    logprobs: Float32Vector
    ranks: Int32Vector
    counts: Int32Vector
    top_ids: Int32Vector
    top: Float32Vector


@dataclass(frozen=True, slots=True)
class Piece:
    """The same of one row, as views."""

    token_ids: Int32Vector
    logprobs: Float32Vector
    ranks: Int32Vector
    counts: Int32Vector
    top_ids: Int32Vector
    top: Float32Vector

    def __len__(self) -> int:
        return len(self.token_ids)

    def copy(self) -> Piece:
        """One that does not keep the message alive which it came in."""
        return Piece(
            *(self.token_ids.copy(), self.logprobs.copy(), self.ranks.copy(), self.counts.copy()),
            *(self.top_ids.copy(), self.top.copy()),
        )

    def part(self, first: int, last: int | None = None) -> Piece:
        """Of the tokens from `first` to before `last`."""
        tokens = slice(first, last)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])
        top = slice(ends[min(first, len(self))], ends[len(self) if last is None else min(last, len(self))])
        return Piece(
            *(self.token_ids[tokens], self.logprobs[tokens], self.ranks[tokens], self.counts[tokens]),
            *(self.top_ids[top], self.top[top]),
        )


def split(columns: Logprobs | None) -> dict[int, Piece]:
    """The pieces of a message's rows."""
    if columns is None or not len(columns.rows):
        return {}
    starts = np.flatnonzero(np.diff(columns.rows, prepend=columns.rows[0] - 1))
    ends = [*starts[1:].tolist(), len(columns.rows)]
    top_ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(columns.counts)]).tolist()
    pieces = {}
    for first, last in zip(starts.tolist(), ends, strict=True):
        tokens, top = slice(first, last), slice(top_ends[first], top_ends[last])
        pieces[int(columns.rows[first])] = Piece(
            *(columns.token_ids[tokens], columns.logprobs[tokens], columns.ranks[tokens]),
            *(columns.counts[tokens], columns.top_ids[top], columns.top[top]),
        )
    return pieces


def join(pieces: Iterable[tuple[int, Piece]]) -> Logprobs | None:
    """Columns of pieces, which come with their rows in order; None of none."""
    some = list(pieces)
    if not some:
        return None
    return Logprobs(
        rows=np.repeat(np.array([row for row, _ in some], np.int32), [len(piece) for _, piece in some]),
        token_ids=np.concatenate([piece.token_ids for _, piece in some]),
        logprobs=np.concatenate([piece.logprobs for _, piece in some]),
        ranks=np.concatenate([piece.ranks for _, piece in some]),
        counts=np.concatenate([piece.counts for _, piece in some]),
        top_ids=np.concatenate([piece.top_ids for _, piece in some]),
        top=np.concatenate([piece.top for _, piece in some]),
    )
