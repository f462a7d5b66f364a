"""A group whose ranks are threads of one process: for tests, and the model of what the others do."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pageant.kernels.collectives.arguments import (
    check_contiguous,
    check_counts,
    check_gathered,
    check_peer,
    check_rank,
    check_sum,
    different_counts,
    named,
)
from pageant.kernels.collectives.base import GroupBroken, GroupMisuse
from pageant.kernels.collectives.sums import finish_sum, tree_sum

__all__ = ["LocalRank", "local_group"]

UNRECEIVED_MAX = 2
"""Tensors of one sender to one receiver that may be on their way."""


def local_group(size: int, deadline_seconds: float = 30.0) -> list[LocalRank]:
    """Return the ranks of a new group, in order. Each belongs to a thread of its own."""
    if size < 1:
        raise GroupMisuse(f"a group of {size}; expected at least 1")
    meeting = _Meeting(size, deadline_seconds)
    return [LocalRank(rank, meeting) for rank in range(size)]


@dataclass
class _Round:
    """State of one collective operation."""

    operation: str
    """Name and shapes, as the first rank called it."""
    first: int
    """That rank."""
    parts: dict[int, Tensor] = field(default_factory=dict)
    """Copies of what ranks brought, [...] of any dtype, by rank."""
    finished: int = 0
    """Ranks that need it no longer."""


class _Meeting:
    """State that the ranks of a group share; guarded by one condition."""

    def __init__(self, size: int, deadline_seconds: float) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.rounds: dict[int, _Round] = {}
        self.edges: dict[tuple[int, int], deque[Tensor]] = {}
        """Tensors, [...] of any dtype, on their way from one rank to another."""
        self.broken: GroupBroken | None = None
        self._deadline_seconds = deadline_seconds

    def break_off(self, reason: str, rank: int | None) -> GroupBroken:
        """Break the group, unless it is broken already; return the error for all."""
        with self.changed:
            if self.broken is None:
                self.broken = GroupBroken(reason, rank)
                self.changed.notify_all()
            return self.broken

    def check(self) -> None:
        if self.broken is not None:
            raise GroupBroken(str(self.broken), self.broken.rank)

    def wait_for(self, has_come: Callable[[], bool], missing: Callable[[], tuple[str, int]]) -> None:
        """Wait, holding the condition, until something has come; `missing` says what and whose it would be."""
        came = self.changed.wait_for(lambda: has_come() or self.broken is not None, self._deadline_seconds)
        if not came:
            what, rank = missing()
            self.break_off(f"{what} did not come within {self._deadline_seconds:g} s", rank)
        self.check()


class LocalRank:
    """A `Collectives` of a thread."""

    is_recordable = False

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self.size = rank, meeting.size
        self._meeting = meeting
        self._number = 0
        self._in_use = threading.Lock()

    def all_reduce(self, parts: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
        """See `Collectives.all_reduce`."""
        check_sum(parts, out, bias)
        gathered = self._exchange("all_reduce", tree_sum(parts.unbind()), range(self.size))
        finish_sum(tree_sum(gathered), out, bias)

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        """See `Collectives.broadcast`."""
        check_rank(root, self.size)
        check_contiguous(tensor)
        is_root = self.rank == root
        sources = () if is_root else (root,)
        name = f"broadcast from {root}"
        for source in self._exchange(name, tensor if is_root else torch.empty(0), sources, tensor):
            tensor.copy_(source)

    def gather(self, part: Tensor, out: Tensor | None, root: int = 0) -> None:
        """See `Collectives.gather`."""
        check_rank(root, self.size)
        check_contiguous(part, out)
        check_gathered(part, out, self.size, is_root=self.rank == root)
        sources = range(self.size) if self.rank == root else ()
        gathered = self._exchange(f"gather to {root}", part, sources)
        if out is not None:
            torch.stack(gathered, out=out)

    def all_gather(self, part: Tensor, out: Tensor) -> None:
        """See `Collectives.all_gather`."""
        check_contiguous(part, out)
        check_gathered(part, out, self.size, is_root=True)
        torch.stack(self._exchange("all_gather", part, range(self.size)), out=out)

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """See `Collectives.all_to_all`."""
        check_contiguous(rows)
        check_counts(rows, sent, received, self.rank, self.size)
        counts = torch.tensor([list(sent), list(received)])
        tables = torch.stack(self._exchange("all_to_all counts", counts, range(self.size)))
        if difference := different_counts(tables):
            raise self._meeting.break_off(difference, None)
        everyone = self._exchange("all_to_all", rows, range(self.size), rows[:0])
        return torch.cat(
            [
                torch.split_with_sizes(theirs, table)[self.rank]
                for table, theirs in zip(tables[:, 0].tolist(), everyone, strict=True)
            ]
        )

    def barrier(self) -> None:
        """See `Collectives.barrier`."""
        self._exchange("barrier", torch.empty(0), range(self.size))

    def send(self, tensor: Tensor, peer: int) -> None:
        """See `Collectives.send`."""
        check_peer(self.rank, peer, self.size)
        check_contiguous(tensor)
        meeting = self._meeting
        with self._entered(), meeting.changed:
            edge = meeting.edges.setdefault((self.rank, peer), deque())
            meeting.wait_for(
                lambda: len(edge) < UNRECEIVED_MAX,
                lambda: (f"room for what rank {self.rank} sends to rank {peer}", peer),
            )
            edge.append(tensor.clone())
            meeting.changed.notify_all()

    def receive(self, tensor: Tensor, peer: int) -> None:
        """See `Collectives.receive`."""
        check_peer(self.rank, peer, self.size)
        check_contiguous(tensor)
        meeting = self._meeting
        with self._entered(), meeting.changed:
            edge = meeting.edges.setdefault((peer, self.rank), deque())
            meeting.wait_for(
                lambda: bool(edge), lambda: (f"what rank {peer} sends to rank {self.rank}", peer)
            )
            found = edge.popleft()
            meeting.changed.notify_all()
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            raise meeting.break_off(
                f"rank {peer} sent {named(found)} to rank {self.rank}, which expected {named(tensor)}", None
            )
        tensor.copy_(found)

    def check(self) -> None:
        """See `Collectives.check`."""
        self._meeting.check()

    def abort(self, reason: str) -> None:
        """See `Collectives.abort`."""
        self._meeting.break_off(reason, self.rank)

    def close(self) -> None:
        """See `Collectives.close`."""
        self._meeting.break_off(f"rank {self.rank} has left the group", self.rank)

    def _exchange(
        self, name: str, part: Tensor, sources: Iterable[int], described: Tensor | None = None
    ) -> list[Tensor]:
        """Bring a copy of a part, [...] of any dtype, to the next operation; wait for and return those of sources.

        `described` has the shape and dtype that all ranks must agree on; None is the part itself.
        """
        sources = tuple(sources)
        operation = f"{name} of {named(part if described is None else described)}"
        meeting = self._meeting
        with self._entered(), meeting.changed:
            number = self._number
            self._number += 1
            there = meeting.rounds.setdefault(number, _Round(operation, self.rank))
            if there.operation != operation:
                raise meeting.break_off(
                    f"rank {self.rank} is in {operation}, and rank {there.first} in {there.operation}, "
                    f"at operation {number}",
                    None,
                )
            there.parts[self.rank] = part.clone()
            meeting.changed.notify_all()

            def missing() -> tuple[str, int]:
                late = next(rank for rank in sources if rank not in there.parts)
                return f"rank {late}'s part of operation {number}, {operation},", late

            meeting.wait_for(lambda: all(rank in there.parts for rank in sources), missing)
            found = [there.parts[rank] for rank in sources]
            there.finished += 1
            if there.finished == self.size:
                del meeting.rounds[number]
            return found

    def _entered(self) -> _Entered:
        """Return a context in which no other thread calls an operation of this rank."""
        return _Entered(self._in_use, self._meeting)


class _Entered:
    """Refuses a second thread."""

    def __init__(self, lock: threading.Lock, meeting: _Meeting) -> None:
        self._lock, self._meeting = lock, meeting

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise GroupMisuse("two threads are in operations of one rank; expected one at a time")
        try:
            self._meeting.check()
        except GroupBroken:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()
