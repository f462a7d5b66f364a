"""Mamba-2 and short convolutions: every backend and level beside transformers, and bit by bit beside itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pageant.kernels.base import Kernels, StateRows
from pageant.kernels.cpu import CpuKernels
from tests.kernels.state_space_layer import Layer, near
from tests.kernels.state_steps import BLOCK_SIZE, MARK, NUM_BLOCKS, no_tokens

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Groups, heads, numbers of keys and of values, and tokens of the convolution.
SIZES = [(2, 4, 16, 8, 4), (3, 3, 7, 5, 2), (1, 2, 33, 70, 3), (1, 6, 128, 64, 4)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_tokens_are_those_of_transformers(
    every_level: Kernels, sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Prompts in chunks that end anywhere, then single tokens side by side, and both."""
    layer = Layer(sizes, dtype, activated=sizes[0] != 3)
    texts = [layer.text(count) for count in (40, 21, 9, 3)]
    for spans in (
        [(0, 13), (0, 8), (0, 1), (0, 2)],
        [(13, 14), (8, 9), (1, 8), (2, 3)],
        [(14, 40), (9, 21), (8, 9), (3, 3)],
    ):
        found = layer.step(every_level, texts, spans)
        for number, (text, (first, last), (mixed, read)) in enumerate(zip(texts, spans, found, strict=True)):
            torch.testing.assert_close(mixed, text.mixed[first:last], **near(dtype))
            torch.testing.assert_close(read, text.read[first:last], **near(dtype))
            for end in {last, *(end for end in range(first + 1, last) if end % BLOCK_SIZE == 0)} - {first}:
                kept = F.pad(text.channels[:end], (0, 0, sizes[4] - 1, 0))[end:]
                assert torch.equal(layer.state(number, end)[1][0], kept)
    unused = set(range(NUM_BLOCKS)) - set(layer.tables[:, :4].flatten().tolist())
    assert all(layer.bytes_of(block).eq(MARK).all() for block in unused)


@pytest.mark.parametrize("page_bytes", [8, 56, 1000])
def test_a_state_goes_through_pages_of_any_size(every_level: Kernels, page_bytes: int) -> None:
    found = []
    for pages in (None, page_bytes):
        layer = Layer((2, 4, 16, 8, 4), torch.bfloat16, pages)
        text = layer.text(30)
        spans = ((0, 11), (11, 12), (12, 30))
        found.append([part for span in spans for part in layer.step(every_level, [text], [span])[0]])
        assert layer.bytes_of(int(layer.tables[0, 4, 0])).eq(MARK).all(), "a block of nobody is left alone"
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_chunks_of_any_size_neighbours_and_threads_give_the_same_bits(
    leveled: CpuKernels, sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    whole = Layer(sizes, dtype)
    text, *others = (whole.text(count) for count in (150, 5, 1))
    ((_, expected),) = whole.step(leveled, [text], [(0, 150)])
    threads = torch.get_num_threads()
    for size in (1, 7, 64, 65, 149):
        layer = Layer(sizes, dtype)
        spans = [(first, min(first + size, 150)) for first in range(0, 150, size)]
        found = torch.cat([layer.step(leveled, [text], [span])[0][1] for span in spans])
        assert torch.equal(found, expected), f"in chunks of {size}"
        assert all(map(torch.equal, layer.state(0, 150), whole.state(0, 150)))
        try:
            torch.set_num_threads(3)
            mixed = Layer(sizes, dtype).step(
                leveled, [others[0], text, others[1]], [(0, 5), (0, size), (0, 1)]
            )
        finally:
            torch.set_num_threads(threads)
        assert torch.equal(mixed[1][1], expected[:size]), f"{size} tokens among neighbours"
    assert not leveled.fallbacks["state_space"] and not leveled.fallbacks["causal_conv"]


def test_drafts_leave_states_alone_until_they_are_replayed(every_level: Kernels) -> None:
    """Three drafts after token 10; two of them were right."""
    layer = Layer((2, 4, 16, 8, 4), torch.float32)
    text, other = layer.text(40), layer.text(40)
    layer.step(every_level, [text, other], [(0, 10), (0, 4)])

    def rows(replayed: int, unsure: int) -> StateRows:
        return StateRows(np.array([0, 1]), np.array([replayed, 0]), np.array([unsure, 0]))

    ((_, drafted), _) = layer.step(every_level, [text, other], [(10, 14), (4, 5)], rows(0, 3))
    torch.testing.assert_close(drafted, text.read[10:14], **near(torch.float32))
    ((_, after), (_, beside)) = layer.step(every_level, [text, other], [(11, 15), (5, 6)], rows(2, 0))
    torch.testing.assert_close(after, text.read[11:15], **near(torch.float32))
    torch.testing.assert_close(beside, other.read[5:6], **near(torch.float32))


def test_other_dtypes_are_left_to_the_reference() -> None:
    kernels = CpuKernels()
    layer = Layer((2, 4, 16, 8, 4), torch.float64)
    text = layer.text(9)
    ((_, read),) = layer.step(kernels, [text], [(0, 9)])
    torch.testing.assert_close(read, text.read, atol=1e-5, rtol=1e-5)
    assert kernels.fallbacks["state_space"] == kernels.fallbacks["causal_conv"] == 1


def test_a_step_without_tokens_reads_nothing(every_level: Kernels) -> None:
    layer = Layer((2, 4, 16, 8, 4), torch.float32)
    nothing, heads = torch.empty(0, layer.memory.num_channels), torch.empty(0, 4)
    mixed = every_level.causal_conv(
        nothing, layer.conv, layer.bias, layer.memory, no_tokens(), activated=True
    )
    read = every_level.state_space(mixed, heads, heads, layer.skip, layer.memory, no_tokens())
    assert mixed.shape == nothing.shape and read.shape == (0, 4, 8)
    assert all(layer.bytes_of(block).eq(MARK).all() for block in range(NUM_BLOCKS))
