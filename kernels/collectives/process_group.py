"""A group by torch.distributed: Gloo for CPUs, NCCL for GPUs.

Ranks that meet in different operations are found out by their sizes, if at all, or by the deadline.

Its process group is its own. torch's global default group is neither used nor made, so that several groups live side
by side in a process. Objects are never sent, only tensors: torch's object collectives unpickle what comes.

Gloo's connections are neither authenticated nor encrypted, and NCCL's are not either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from pageant.kernels.collectives.arguments import (
    check_contiguous,
    check_counts,
    check_gathered,
    check_peer,
    check_rank,
    check_sum,
    different_counts,
)
from pageant.kernels.collectives.base import GroupBroken, GroupMisuse
from pageant.kernels.collectives.sums import finish_sum, tree_sum
from pageant.kernels.collectives.waiting import Waiting

__all__ = ["ProcessGroup"]

_UNWAITED_MAX = 2
_EDGE_TAG, _GATHER_TAG = 1, 2
# Sums of fewer bytes are exchanged whole, in one round.
_WHOLE_BYTES_MAX = 64 << 10
_MARGIN = timedelta(seconds=1)


class ProcessGroup:
    """A `Collectives` by torch.distributed.

    Args:
        store: where all ranks find one another: `MirroredStore.store`, or one of torch's.
        name: the group's, unlike that of any other group in this store, such as "executor/3" for epoch 3.
        device: the tensors' device. A CPU has Gloo, a GPU has NCCL.
        address: the address that Gloo listens on, and by which other ranks reach this one.
        deadline_seconds: for how long one operation may wait for others.
        join_seconds: for how long the ranks wait for one another in the beginning.
        meets: whether to wait for them at once, or when `meet` is called, which another thread can abort.

    Making one waits for all ranks, if it `meets`, and checks a sum. Raises GroupBroken if they do not come.
    """

    is_recordable = False

    def __init__(
        self,
        store: Store,
        name: str,
        rank: int,
        size: int,
        *,
        device: torch.device | str = "cpu",
        address: str = "127.0.0.1",
        deadline_seconds: float = 30.0,
        join_seconds: float = 30.0,
        meets: bool = True,
    ) -> None:
        if size < 1:
            raise GroupMisuse(f"a group of {size}; expected at least 1")
        check_rank(rank, size)
        self.rank, self.size = rank, size
        self._device = torch.device(device)
        self._waits_on_host = self._device.type == "cpu"
        self._waiting = Waiting(max(deadline_seconds, join_seconds))
        self._unwaited: deque[tuple[Any, Tensor, str]] = deque()
        """Work that was begun and not waited for, with its tensor, [N] bytes, and its name."""
        self._closed = False
        self._group: Any = None
        self._name, self._deadline_seconds = name, deadline_seconds
        joining = timedelta(seconds=join_seconds)
        self._open = partial(_open, PrefixStore(name, store), rank, size, self._device, address, joining)
        if meets:
            self.meet()

    def meet(self) -> None:
        """Wait for all ranks, once, before anything else. Raises GroupBroken if they do not come."""
        try:
            self._group = self._opened()
            self._check_sum()
            # The wait of ours ends first, with a reason of ours.
            self._group._set_default_timeout(timedelta(seconds=self._deadline_seconds) + _MARGIN)
        except GroupBroken:
            raise
        except RuntimeError as error:
            reason = f"group {self._name} did not form: {error}"
            self._waiting.break_off(reason)
            raise GroupBroken(reason) from error
        self._waiting.deadline_seconds = self._deadline_seconds

    def _opened(self) -> Any:
        """Return torch's group. It waits for the others without regard to anyone, so on a host in another thread."""
        if not self._waits_on_host:
            return self._open()
        found: list[Any] = []

        def open_group() -> None:
            try:
                found.append(self._open())
            except RuntimeError as error:
                found.append(error)

        self._waiting.run(open_group, f"the meeting of group {self._name}")
        (opened,) = found
        if isinstance(opened, RuntimeError):
            raise opened
        return opened

    def all_reduce(self, parts: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
        """See `Collectives.all_reduce`."""
        check_sum(parts, out, bias)
        mine = tree_sum(parts.unbind())
        if mine.nbytes <= _WHOLE_BYTES_MAX or len(mine) < self.size:
            gathered = mine.new_empty(self.size, *mine.shape)
            self._all_gather(mine, gathered, "all_reduce")
            finish_sum(tree_sum(gathered.unbind()), out, bias)
        else:
            self._sum_by_rows(mine, out, bias)

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        """See `Collectives.broadcast`."""
        check_rank(root, self.size)
        check_contiguous(tensor)
        if tensor.numel() == 0:
            self.check()
        elif self.rank == root:
            self._begin(lambda sent: self._group.broadcast(sent, root), tensor, "broadcast")
        else:
            self._finish(lambda: self._group.broadcast(_flat(tensor), root), "broadcast")

    def gather(self, part: Tensor, out: Tensor | None, root: int = 0) -> None:
        """See `Collectives.gather`."""
        check_rank(root, self.size)
        check_contiguous(part, out)
        check_gathered(part, out, self.size, is_root=self.rank == root)
        if part.numel() == 0:
            return self.barrier()
        if out is None:
            self._begin(lambda sent: self._group.send([sent], root, _GATHER_TAG), part, "gather")
            return
        for source in range(self.size):
            if source == root:
                out[source].copy_(part)
            else:
                self._receive(out[source], source, _GATHER_TAG, "gather")

    def all_gather(self, part: Tensor, out: Tensor) -> None:
        """See `Collectives.all_gather`."""
        check_contiguous(part, out)
        check_gathered(part, out, self.size, is_root=True)
        self._all_gather(part, out, "all_gather")

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """See `Collectives.all_to_all`."""
        check_contiguous(rows)
        check_counts(rows, sent, received, self.rank, self.size)
        counts = torch.tensor([list(sent), list(received)], device=self._device)
        tables = counts.new_empty(self.size, 2, self.size)
        self._all_gather(counts, tables, "all_to_all")
        if difference := different_counts(tables):
            raise self._waiting.break_off(difference)
        out = rows.new_empty(sum(received), rows.shape[1])
        self._exchange(rows, out, list(sent), list(received), "all_to_all")
        return out

    def barrier(self) -> None:
        """See `Collectives.barrier`."""
        token = torch.zeros(1, dtype=torch.uint8, device=self._device)
        self._all_gather(token, token.new_empty(self.size, 1), "barrier")

    def send(self, tensor: Tensor, peer: int) -> None:
        """See `Collectives.send`."""
        check_peer(self.rank, peer, self.size)
        check_contiguous(tensor)
        self._begin(lambda sent: self._group.send([sent], peer, _EDGE_TAG), tensor, "send")

    def receive(self, tensor: Tensor, peer: int) -> None:
        """See `Collectives.receive`."""
        check_peer(self.rank, peer, self.size)
        check_contiguous(tensor)
        self._receive(tensor, peer, _EDGE_TAG, "receive")

    def check(self) -> None:
        """See `Collectives.check`."""
        self._waiting.check()

    def abort(self, reason: str) -> None:
        """See `Collectives.abort`. Others hear of it when this rank closes, or its process ends."""
        self._waiting.break_off(reason, self.rank)
        if not self._waits_on_host:
            self._group.abort()

    def close(self) -> None:
        """See `Collectives.close`. Connections close with what was begun."""
        if self._closed:
            return
        self._closed = True
        group, unwaited = self._group, [work for work, _, _ in self._unwaited]
        self._group = None
        if not self._waits_on_host:
            group.shutdown()
            unwaited.clear()
        self._waiting.close(
            f"rank {self.rank} has left the group", self.rank, [group, self._unwaited], unwaited
        )

    def _all_gather(self, part: Tensor, out: Tensor, name: str) -> None:
        """Gather parts, [...] of any dtype, to all: out [size, ...]."""
        if part.numel():
            self._finish(lambda: self._group._allgather_base(_flat(out), _flat(part)), name)

    def _sum_by_rows(self, mine: Tensor, out: Tensor, bias: Tensor | None) -> None:
        """Sum [T, N] by parts of its rows: each rank adds those of its own, rounds them, and gives them to all."""
        rows, columns = mine.shape
        each = -(-rows // self.size)
        counts = [max(0, min(each, rows - each * rank)) for rank in range(self.size)]
        own = counts[self.rank]
        theirs = mine.new_empty(self.size * own, columns)
        self._exchange(mine, theirs, counts, [own] * self.size, "all_reduce")
        rounded = out.new_empty(each, columns)
        if own:
            finish_sum(tree_sum(theirs.view(self.size, own, columns).unbind()), rounded[:own], bias)
        gathered = out.new_empty(self.size * each, columns)
        self._all_gather(rounded, gathered, "all_reduce")
        out.copy_(gathered[:rows])

    def _exchange(self, rows: Tensor, out: Tensor, sent: list[int], received: list[int], name: str) -> None:
        """Send rows, [sum(sent), N] of any dtype, to their ranks; fill out [sum(received), N]."""
        width = rows.shape[1] * rows.itemsize
        if width == 0:
            return
        flat, flat_out = _flat(rows).view(-1, width), _flat(out).view(-1, width)
        self._finish(lambda: self._group.alltoall_base(flat_out, flat, received, sent), name)

    def _receive(self, tensor: Tensor, peer: int, tag: int, name: str) -> None:
        if tensor.numel():
            self._finish(lambda: self._group.recv([_flat(tensor)], peer, tag), f"{name} from rank {peer}")

    def _begin(self, start: Any, tensor: Tensor, name: str) -> None:
        """Start work on a copy of a tensor, [...] of any dtype, and leave it; wait if too much is left already."""
        self._waiting.check()
        if tensor.numel() == 0:
            return
        while len(self._unwaited) >= _UNWAITED_MAX:
            work, _, earlier = self._unwaited.popleft()
            self._wait(work, earlier)
        copy = _flat(tensor).clone()
        self._unwaited.append((self._started(lambda: start(copy), name), copy, name))

    def _finish(self, start: Any, name: str) -> None:
        self._waiting.check()
        self._wait(self._started(start, name), name)

    def _started(self, start: Any, name: str) -> Any:
        try:
            return start()
        except RuntimeError as error:
            raise self._waiting.break_off(f"{name} failed: {error}") from error

    def _wait(self, work: Any, name: str) -> None:
        if self._waits_on_host:
            self._waiting.run(work.wait, name)
        else:
            work.wait()  # makes the current stream wait, not the host

    def _check_sum(self) -> None:
        """Raise RuntimeError unless a sum of ones is the group's size."""
        ones = torch.ones(1, 1, 1, device=self._device)
        total = torch.empty(1, 1, device=self._device)
        self.all_reduce(ones, total)
        if int(total) != self.size:
            raise RuntimeError(f"the first sum is {int(total)}; expected {self.size}")


def _flat(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor, [...] of any dtype, as uint8 [N]: a view."""
    return tensor.view(-1).view(torch.uint8)


def _open(store: Store, rank: int, size: int, device: torch.device, address: str, timeout: timedelta) -> Any:
    if device.type == "cpu":
        from torch.distributed import ProcessGroupGloo

        gloo = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        gloo._devices = [ProcessGroupGloo.create_device(hostname=address)]
        gloo._threads = 1
        gloo._timeout = timeout
        return ProcessGroupGloo(store, rank, size, gloo)
    from torch.distributed import ProcessGroupNCCL

    nccl = ProcessGroupNCCL.Options()
    nccl._timeout = timeout
    return ProcessGroupNCCL(store, rank, size, nccl)
