"""A group of processes, or threads, of one host that share memory: C++ in `kernels/cpu/csrc/collectives`.

A rank that waits looks for 50 microseconds, in which it yields its core, and then sleeps until it is woken. It finds
out within 20 milliseconds that a process which it waits for has ended, and that the group was aborted.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

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
)
from pageant.kernels.collectives.base import GroupBroken, GroupMisuse
from pageant.kernels.collectives.segment import RANKS_MAX, SegmentAddress, group_functions
from pageant.kernels.cpu.recording import note_call

__all__ = ["SharedMemory"]

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_UNMAPPABLE = "the system does not map it"
_WHY = {1: _UNMAPPABLE, 2: "it is another group's", 3: "this rank has joined already"}


class SharedMemory:
    """A `Collectives` by shared memory.

    Its calls can be recorded with those of the CPU kernels (`CompiledKernels.capture`). A replay in which the group
    breaks ends there: `check` says so.

    Args:
        address: of a `Segment`, whose creator has it open still.
        rank: this side's.
        deadline_seconds: for how long one operation may wait for another rank.
        join_seconds: for how long the ranks wait for one another in the beginning.
        meets: whether to wait for them at once, or when `meet` is called, which another thread can abort.

    Making one waits for all ranks, if it `meets`. Raises GroupBroken if they do not come. Raises GroupMisuse for an
    address that cannot be joined: of another host or container, of a process that has ended, or with a rank that is
    taken.
    """

    is_recordable = True

    def __init__(
        self,
        address: str,
        rank: int,
        deadline_seconds: float = 30.0,
        join_seconds: float = 30.0,
        *,
        meets: bool = True,
    ) -> None:
        where = SegmentAddress.parse(address)
        check_rank(rank, where.size)
        self.rank, self.size = rank, where.size
        self._functions = group_functions()
        self._deadline_seconds = deadline_seconds
        self._joined = _join(where, rank, join_seconds)
        if meets:
            self.meet()

    def meet(self) -> None:
        """Wait for all ranks, once, before anything else. Raises GroupBroken if they do not come."""
        try:
            self.barrier()
        except BaseException:
            self.close()
            raise
        self._functions.watch(self._joined, int(self._deadline_seconds * 1e9))

    def all_reduce(self, parts: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
        """See `Collectives.all_reduce`."""
        check_sum(parts, out, bias)
        _check_types(out, bias)
        segments, rows, columns = parts.shape
        if segments > RANKS_MAX:
            raise GroupMisuse(f"{segments} segments of a sum; expected at most {RANKS_MAX}")
        self._run(
            self._functions.all_reduce,
            parts.data_ptr(),
            segments,
            rows,
            columns,
            out.data_ptr(),
            _TYPES[out.dtype],
            None if bias is None else bias.data_ptr(),
            0 if bias is None else _TYPES[bias.dtype],
        )

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        """See `Collectives.broadcast`."""
        check_rank(root, self.size)
        check_contiguous(tensor)
        self._run(self._functions.broadcast, tensor.data_ptr(), tensor.nbytes, root)

    def gather(self, part: Tensor, out: Tensor | None, root: int = 0) -> None:
        """See `Collectives.gather`."""
        check_rank(root, self.size)
        check_contiguous(part, out)
        check_gathered(part, out, self.size, is_root=self.rank == root)
        to = None if out is None else out.data_ptr()
        self._run(self._functions.gather, part.data_ptr(), to, part.nbytes, root)

    def all_gather(self, part: Tensor, out: Tensor) -> None:
        """See `Collectives.all_gather`."""
        check_contiguous(part, out)
        check_gathered(part, out, self.size, is_root=True)
        self._run(self._functions.gather, part.data_ptr(), out.data_ptr(), part.nbytes, -1)

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """See `Collectives.all_to_all`. It cannot be recorded."""
        check_contiguous(rows)
        check_counts(rows, sent, received, self.rank, self.size)
        tables = torch.empty(self.size, 2, self.size, dtype=torch.int64)
        self.all_gather(torch.tensor([list(sent), list(received)]), tables)
        if difference := different_counts(tables):
            self.abort(difference)
            self.check()
        table = tables[:, 0].contiguous()
        out = rows.new_empty(sum(received), rows.shape[1])
        width = rows.shape[1] * rows.itemsize
        self._run(self._functions.all_to_all, rows.data_ptr(), out.data_ptr(), table.data_ptr(), width)
        return out

    def barrier(self) -> None:
        """See `Collectives.barrier`."""
        self._run(self._functions.barrier)

    def send(self, tensor: Tensor, peer: int) -> None:
        """See `Collectives.send`."""
        check_peer(self.rank, peer, self.size)
        check_contiguous(tensor)
        self._run(self._functions.send, tensor.data_ptr(), tensor.nbytes, peer)

    def receive(self, tensor: Tensor, peer: int) -> None:
        """See `Collectives.receive`."""
        check_peer(self.rank, peer, self.size)
        check_contiguous(tensor)
        self._run(self._functions.receive, tensor.data_ptr(), tensor.nbytes, peer)

    def check(self) -> None:
        """See `Collectives.check`."""
        culprit = ctypes.c_int64(-1)
        reason = self._functions.reason(self._joined, ctypes.addressof(culprit))
        if reason is not None:
            rank = culprit.value
            raise GroupBroken(reason.decode("utf-8", "replace"), rank if rank >= 0 else None)

    def abort(self, reason: str) -> None:
        """See `Collectives.abort`."""
        self._functions.abort(self._joined, self.rank, reason.encode()[:500])

    def close(self) -> None:
        """See `Collectives.close`. The memory is unmapped now, or when the operation that a thread is in ends."""
        self._functions.close(self._joined, f"rank {self.rank} has left the group".encode())

    def _run(self, function: Any, *arguments: int | None) -> None:
        """Call one of the library's functions, and raise what it finds."""
        arguments = (self._joined, *arguments)
        note_call(function, arguments)
        found = function(*arguments)
        if found == 2:
            raise GroupMisuse("two threads are in operations of one rank; expected one at a time")
        if found:
            self.check()


def _join(where: SegmentAddress, rank: int, join_seconds: float) -> int:
    """Map a segment and take a rank in it; return the library's handle. Raises GroupMisuse."""
    path = f"/proc/{where.process}/fd/{where.file}"
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise GroupMisuse(
            f"rank {rank} cannot join the group's memory at {path} ({error.strerror}); expected a segment that its "
            "creator has open, on this host"
        ) from error
    why = ctypes.c_int64()
    try:
        joined: int | None = group_functions().join(
            file,
            os.fstat(file).st_size,
            rank,
            where.size,
            where.nonce,
            int(join_seconds * 1e9),
            ctypes.addressof(why),
        )
    finally:
        os.close(file)
    if joined is None:
        raise GroupMisuse(f"rank {rank} cannot join the group's memory at {path}: {_WHY[why.value]}")
    return joined


def _check_types(out: Tensor, bias: Tensor | None) -> None:
    for tensor in (out, bias):
        if tensor is not None and tensor.dtype not in _TYPES:
            raise GroupMisuse(f"a tensor in {tensor.dtype}; expected float32, bfloat16 or float16")
