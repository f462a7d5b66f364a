"""Room for weights and caches: whole, its own, and not taken before it is written to."""

from __future__ import annotations

import mmap
import resource

import pytest
import torch

from pageant.kernels import memory

HUGE = 2 << 20


@pytest.mark.parametrize("shape", [(0, 4), (3,), (5, 7), (1 << 20,), (1025, 1024), (3, 1 << 20)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
def test_room_has_its_shape_and_keeps_what_is_written(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    pages = memory.Pages("cpu")
    tensors = [memory.zeros(shape, dtype, "cpu"), pages.empty(shape, dtype), pages.empty(shape, dtype)]
    assert not tensors[0].any()
    for value, tensor in enumerate(tensors, 1):
        assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True)
        tensor.fill_(value)
    assert all((tensor == value).all() for value, tensor in enumerate(tensors, 1))


def test_tensors_that_stay_together_lie_side_by_side_from_where_a_huge_page_may_be() -> None:
    pages = memory.Pages("cpu")
    first, second, large = (pages.empty((size,), torch.int8) for size in (100, 3 * HUGE, 200 * HUGE))
    assert first.data_ptr() % HUGE == 0 and second.data_ptr() == first.data_ptr() + 128
    assert large.data_ptr() % HUGE == 0


def test_a_cache_takes_no_memory_before_it_is_used() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cache = memory.zeros((4 << 30,), torch.int8, "cpu")
    cache[::HUGE][:4] = 1
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert taken * 1024 <= 4 * HUGE + (1 << 20)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no huge pages")
def test_large_room_asks_for_huge_pages_but_for_its_end() -> None:
    tensor = memory.zeros((3 * HUGE + 5000,), torch.int8, "cpu")
    start, advised = tensor.data_ptr(), 0
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if "-" in line.split()[0] and ":" not in line.split()[0]:
                low, high = (int(end, 16) for end in line.split()[0].split("-"))
            elif line.startswith("VmFlags") and " hg" in line and start <= low < start + 3 * HUGE:
                advised += min(high, start + tensor.nbytes) - max(low, start)
    assert advised == 3 * HUGE
