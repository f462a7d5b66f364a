"""Memory that is used again."""

from __future__ import annotations

import pytest
import torch

from pageant.kernels.cpu import CpuKernels
from pageant.kernels.cpu.arena import Arena

MEGABYTES = 1 << 20


@pytest.mark.parametrize("rows", [4, MEGABYTES])
@pytest.mark.parametrize("lasting", [False, True])
def test_memory_is_used_again_once_nothing_refers_to_it(rows: int, lasting: bool) -> None:
    arena = Arena(lasting=lasting)
    first = arena.empty((rows, 8), torch.float32)
    view, place = first[1:].view(-1), first.data_ptr()
    del first
    second = arena.empty((rows, 8), torch.float32)
    assert second.data_ptr() != place, "a view is still there"
    del view
    assert arena.empty((rows // 2, 8), torch.bfloat16).data_ptr() == place
    assert place % 64 == 0


def test_the_smallest_piece_that_is_large_enough_is_taken() -> None:
    arena = Arena(lasting=True)
    pieces = [arena.empty((count,), torch.uint8) for count in (1000, 100, 500)]
    places = [piece.data_ptr() for piece in pieces]
    del pieces[:]
    assert arena.empty((200,), torch.uint8).data_ptr() == places[2]


@pytest.mark.parametrize("lasting", [False, True])
def test_what_is_too_small_is_given_back_or_twice_as_large_if_it_is_to_last(lasting: bool) -> None:
    arena = Arena(lasting=lasting)
    for megabytes in (4, 8, 16, 32):
        arena.empty((megabytes * MEGABYTES,), torch.uint8)
    assert [len(piece) // MEGABYTES for piece in arena._free] == ([8, 32] if lasting else [32])


def test_large_results_lie_where_others_lay_and_small_ones_are_torchs(cpu: CpuKernels) -> None:
    x, weight = torch.randn(600, 64), torch.randn(512, 64)
    large = cpu.linear(x, weight)
    assert large.numel() >= 1 << 18
    place = large.data_ptr()
    del large
    again = cpu.linear(-x, weight)
    assert again.data_ptr() == place
    torch.testing.assert_close(again, -x @ weight.T)
