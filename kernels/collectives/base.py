"""The contract of a group's collective operations.

Shapes are written with T tokens in the step, N columns, S segments of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

__all__ = ["Collectives", "GroupBroken", "GroupMisuse"]


class GroupBroken(RuntimeError):
    """A group whose operations have ended: a rank died, left, fell behind a deadline, or aborted it.

    `rank` is the rank at fault, where one is known.
    """

    def __init__(self, reason: str, rank: int | None = None) -> None:
        super().__init__(reason)
        self.rank = rank


class GroupMisuse(ValueError):
    """Arguments of an operation that no group can carry out, such as a wrong dtype or shape."""


@runtime_checkable
class Collectives(Protocol):
    """Rank's side of a group of `size` ranks.

    All ranks call the same operations in the same order, with the same shapes. `send` and `receive` are apart from
    that order: messages from one rank to another keep their own. A rank calls from one thread at a time; `abort`
    may be called from any thread at any time.

    Every operation waits for as long as it needs others, but never longer than the group's deadline. It raises
    GroupBroken when another rank dies, leaves, or aborts the group, when the deadline passes, and when ranks meet in
    different operations. All later calls then raise it too. Results of an operation that raised are undefined.
    It raises GroupMisuse for arguments that are wrong by themselves, before anything is sent.

    Tensors are on the device of the group, contiguous unless a method says otherwise, and may be reused when a call
    returns.
    """

    rank: int
    """This side's number, from 0 to `size` - 1."""
    size: int
    """Ranks of the group, at least 1."""
    is_recordable: bool
    """Whether its operations can be part of a recording of kernel calls (`RecordingKernels.capture`)."""

    def all_reduce(self, parts: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
        """Write the sum of all ranks' partial products to `out` of every rank.

        parts: float32 [S, T, N], this rank's S neighbouring segments of the sum. out: [T, N] in any floating dtype,
        mutated. bias: [N] in any floating dtype, the same on all ranks.

        Numbers are added in float32 along a binary tree over all segments, by number: neighbours first, an odd one
        out goes up as it is. The bias is added once, to the sum. The result is rounded once, to the dtype of `out`.
        The tree depends neither on T nor on who holds which segment: where S is the same power of two on
        all ranks, 1, 2 and 4 ranks with as many segments in all give the same bits.
        """
        ...

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        """Copy the root's tensor, [...] of any dtype, into that of every rank, mutated. The root does not wait."""
        ...

    def gather(self, part: Tensor, out: Tensor | None, root: int = 0) -> None:
        """Copy every rank's part, [...] of any dtype, to the root's `out` [size, ...], mutated.

        Other ranks have no `out`, and do not wait.
        """
        ...

    def all_gather(self, part: Tensor, out: Tensor) -> None:
        """Copy every rank's part, [...] of any dtype, to `out` [size, ...] of every rank, mutated."""
        ...

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send some rows to each rank; return those that each rank sent here, in the order of ranks.

        rows: [sum(sent), N] of any dtype, those for rank 0 first. sent: rows for each rank. received: rows that each
        rank sends here. Returns [sum(received), N]. Counts may be 0; a rank without rows calls it too.
        """
        ...

    def barrier(self) -> None:
        """Wait until every rank has called it."""
        ...

    def send(self, tensor: Tensor, peer: int) -> None:
        """Send a tensor, [...] of any dtype, to another rank. Waits only while two earlier ones are not received."""
        ...

    def receive(self, tensor: Tensor, peer: int) -> None:
        """Receive the next tensor that a rank sent here: [...] of its dtype and shape, mutated."""
        ...

    def check(self) -> None:
        """Raise GroupBroken if the group is broken. Needed after replayed recordings, which cannot raise."""
        ...

    def abort(self, reason: str) -> None:
        """Break the group for all ranks: every wait ends with GroupBroken. The first reason is kept."""
        ...

    def close(self) -> None:
        """Leave the group and free what it holds. Others who wait for this rank get GroupBroken. Idempotent."""
        ...
