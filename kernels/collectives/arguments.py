"""Checks of what callers pass to a group's operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pageant.kernels.collectives.base import GroupMisuse

__all__ = [
    "check_contiguous",
    "check_counts",
    "check_gathered",
    "check_peer",
    "check_rank",
    "check_sum",
    "named",
]


def check_rank(rank: int, size: int) -> None:
    """Raise GroupMisuse unless 0 <= rank < size."""
    if not 0 <= rank < size:
        raise GroupMisuse(f"rank {rank} of a group of {size}; expected 0 to {size - 1}")


def check_peer(rank: int, peer: int, size: int) -> None:
    """Raise GroupMisuse unless `peer` is another rank of the group."""
    check_rank(peer, size)
    if peer == rank:
        raise GroupMisuse(f"rank {rank} with itself; expected another rank")


def check_contiguous(*tensors: Tensor | None) -> None:
    """Raise GroupMisuse unless all tensors, [...] of any dtype, are contiguous."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_contiguous():
            raise GroupMisuse(
                f"a tensor {list(tensor.shape)} of strides {tensor.stride()}; expected contiguous"
            )


def check_gathered(part: Tensor, out: Tensor | None, size: int, *, is_root: bool) -> None:
    """Raise GroupMisuse unless `out` fits: [size, *part.shape] of part's dtype on the root, None elsewhere."""
    if not is_root:
        if out is not None:
            raise GroupMisuse("an out on a rank that is not the root; expected None")
        return
    expected = (size, *part.shape)
    if out is None or tuple(out.shape) != expected or out.dtype != part.dtype:
        found = "none" if out is None else named(out)
        dtype = str(part.dtype).removeprefix("torch.")
        raise GroupMisuse(f"out is {found}; expected {dtype} {list(expected)}")


def check_sum(parts: Tensor, out: Tensor, bias: Tensor | None) -> None:
    """Raise GroupMisuse unless parts, out and bias have the dtypes and shapes of `Collectives.all_reduce`."""
    if parts.dtype != torch.float32 or parts.dim() != 3 or parts.shape[0] < 1:
        raise GroupMisuse(f"parts are {named(parts)}; expected float32 [S, T, N] with S at least 1")
    if out.shape != parts.shape[1:] or not out.is_floating_point():
        raise GroupMisuse(f"out is {named(out)}; expected floats {list(parts.shape[1:])}")
    if bias is not None and (bias.shape != parts.shape[2:] or not bias.is_floating_point()):
        raise GroupMisuse(f"bias is {named(bias)}; expected floats {list(parts.shape[2:])}")
    check_contiguous(parts, out, bias)


def check_counts(rows: Tensor, sent: Sequence[int], received: Sequence[int], rank: int, size: int) -> None:
    """Raise GroupMisuse unless the counts are those of `Collectives.all_to_all` for rows, [R, N] of any dtype."""
    if rows.dim() != 2:
        raise GroupMisuse(f"rows are {list(rows.shape)}; expected two dimensions")
    for name, counts in (("sent", sent), ("received", received)):
        if len(counts) != size or min(counts) < 0:
            raise GroupMisuse(f"{name} is {list(counts)}; expected {size} counts of at least 0")
    if sum(sent) != rows.shape[0]:
        raise GroupMisuse(f"sent is {list(sent)}; expected counts that add up to {rows.shape[0]} rows")
    if sent[rank] != received[rank]:
        raise GroupMisuse(
            f"rank {rank} sends itself {sent[rank]} rows and receives {received[rank]}; expected as many"
        )


def different_counts(tables: Tensor) -> str | None:
    """Return, in words, where a sender and a receiver of `all_to_all` disagree; None if all agree.

    tables: int64 [size, 2, size], for each rank what it sends each rank, and what it expects of each.
    """
    sent, expected = tables[:, 0], tables[:, 1].T
    wrong = (sent != expected).nonzero().tolist()
    if not wrong:
        return None
    sender, receiver = wrong[0]
    rows, awaited = int(sent[sender, receiver]), int(expected[sender, receiver])
    return f"rank {sender} sends rank {receiver} {rows} rows, which expects {awaited}"


def named(tensor: Tensor) -> str:
    """Return a tensor's dtype and shape, [...] of any dtype, for messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
