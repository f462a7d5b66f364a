"""Log-probabilities on their way from executors to frontends: columns in a message, and the rows cut out of
them.

They are natural logarithms of the model's probabilities, before any temperature, penalty or filter. A request
that does not ask for them costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from pageant.protocol.arrays import Float32Vector, Int32Vector

# The whole vocabulary, as a number of likeliest tokens: users of vLLM write it so.
ALL = -1


class Logprobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log-probabilities of N tokens, by columns. Tokens of one row are in their order."""

    rows: Int32Vector
    """int32 [N], never falling: the row of the message that each token belongs to."""
    token_ids: Int32Vector
    """int32 [N]."""
    logprobs: Float32Vector
    """float32 [N]: the log-probability of each token."""
    ranks: Int32Vector
    """int32 [N]: the rank of each token in the vocabulary, from 1."""
    counts: Int32Vector
    """int32 [N]: the number of alternatives at each token's place."""
    top_ids: Int32Vector
    """int32 [sum of counts]: the likeliest tokens at each place; or the request's `logprob_token_ids`, in
    order.
    """
    top: Float32Vector
    """float32 [sum of counts]: the log-probabilities of `top_ids`."""


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Log-probabilities of one row's tokens, as views of the columns of `Logprobs`."""

    token_ids: Int32Vector
    logprobs: Float32Vector
    ranks: Int32Vector
    counts: Int32Vector
    top_ids: Int32Vector
    top: Float32Vector

    def __len__(self) -> int:
        return len(self.token_ids)

    def copy(self) -> RowLogprobs:
        """Return a copy that does not keep the message's arrays alive."""
        return RowLogprobs(
            *(self.token_ids.copy(), self.logprobs.copy(), self.ranks.copy(), self.counts.copy()),
            *(self.top_ids.copy(), self.top.copy()),
        )

    def part(self, first: int, last: int | None = None) -> RowLogprobs:
        """Return the log-probabilities of the tokens from `first` to before `last`."""
        tokens = slice(first, last)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])
        top = slice(ends[min(first, len(self))], ends[len(self) if last is None else min(last, len(self))])
        return RowLogprobs(
            *(self.token_ids[tokens], self.logprobs[tokens], self.ranks[tokens], self.counts[tokens]),
            *(self.top_ids[top], self.top[top]),
        )


def split_rows(columns: Logprobs | None) -> dict[int, RowLogprobs]:
    """Return the log-probabilities of each row that has any, by row."""
    if columns is None or not len(columns.rows):
        return {}
    starts = np.flatnonzero(np.diff(columns.rows, prepend=columns.rows[0] - 1))
    ends = [*starts[1:].tolist(), len(columns.rows)]
    top_ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(columns.counts)]).tolist()
    pieces = {}
    for first, last in zip(starts.tolist(), ends, strict=True):
        tokens, top = slice(first, last), slice(top_ends[first], top_ends[last])
        pieces[int(columns.rows[first])] = RowLogprobs(
            *(columns.token_ids[tokens], columns.logprobs[tokens], columns.ranks[tokens]),
            *(columns.counts[tokens], columns.top_ids[top], columns.top[top]),
        )
    return pieces


def join_rows(pieces: Iterable[tuple[int, RowLogprobs]]) -> Logprobs | None:
    """Return the columns of pieces that come with their rows in order; None if there are none."""
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
