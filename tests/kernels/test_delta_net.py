"""Gated DeltaNets: every backend and instruction set beside transformers' recurrence, and bit by bit beside itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pageant.kernels.base import Kernels, StateRows
from pageant.kernels.cpu import CpuKernels
from tests.kernels.delta_net_layer import Layer, near
from tests.kernels.state_steps import BLOCK_SIZE, MARK, NUM_BLOCKS, no_tokens

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Key heads, heads, numbers of keys and of values, and tokens of the convolution.
SIZES = [(2, 4, 16, 8, 4), (3, 3, 7, 5, 2), (1, 2, 33, 70, 3), (2, 2, 128, 128, 4)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_tokens_and_states_are_those_of_transformers(
    every_level: Kernels, sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Prompts in chunks that end anywhere, then single tokens side by side, and both."""
    layer = Layer(sizes, dtype)
    texts = [layer.text(count) for count in (40, 21, 9, 3)]
    for spans in (
        [(0, 13), (0, 8), (0, 1), (0, 2)],
        [(13, 14), (8, 9), (1, 8), (2, 3)],
        [(14, 40), (9, 21), (8, 9), (3, 3)],
    ):
        found = layer.step(every_level, texts, spans)
        for number, (text, (first, last), read) in enumerate(zip(texts, spans, found, strict=True)):
            torch.testing.assert_close(read, text.read[first:last], **near(dtype))
            if first == last:
                continue
            for end in {last, *(end for end in range(first + 1, last) if end % BLOCK_SIZE == 0)}:
                matrices, inputs = layer.state(number, end)
                torch.testing.assert_close(matrices, text.states[end], **near(dtype))
                kept = F.pad(text.channels[:end], (0, 0, sizes[4] - 1, 0))[end:]
                assert torch.equal(inputs, kept)
    unused = set(range(NUM_BLOCKS)) - set(layer.tables[:, :4].flatten().tolist())
    assert all(layer.bytes_of(block).eq(MARK).all() for block in unused)


@pytest.mark.parametrize("page_bytes", [8, 56, 1000, 4096])
def test_a_state_goes_through_pages_of_any_size(every_level: Kernels, page_bytes: int) -> None:
    sizes = (2, 4, 16, 8, 4)
    found = []
    for pages in (None, page_bytes):
        layer = Layer(sizes, torch.bfloat16, pages)
        text = layer.text(30)
        found.append([layer.step(every_level, [text], [span])[0] for span in ((0, 11), (11, 12), (12, 30))])
        torch.testing.assert_close(layer.state(0, 30)[0], text.states[30], **near(torch.bfloat16))
        rest = layer.bytes_of(int(layer.tables[0, 4, 0]))
        assert rest.eq(MARK).all(), "a block of nobody is left alone"
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_chunks_of_any_size_and_neighbours_give_the_same_bits(
    leveled: CpuKernels, sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    whole = Layer(sizes, dtype)
    text, *others = (whole.text(count) for count in (150, 5, 1))
    (expected,) = whole.step(leveled, [text], [(0, 150)])
    for size in (1, 7, 64, 65, 149):
        layer = Layer(sizes, dtype)
        spans = [(first, min(first + size, 150)) for first in range(0, 150, size)]
        found = torch.cat([layer.step(leveled, [text], [span])[0] for span in spans])
        assert torch.equal(found, expected), f"in chunks of {size}"
        assert all(map(torch.equal, layer.state(0, 150), whole.state(0, 150)))
        mixed = Layer(sizes, dtype).step(leveled, [others[0], text, others[1]], [(0, 5), (0, size), (0, 1)])
        assert torch.equal(mixed[1], expected[:size]), f"{size} tokens among neighbours"
    assert leveled.fallbacks["gated_delta_net"] == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_no_bit(leveled: CpuKernels, threads: int) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for count in (2, threads):
            torch.set_num_threads(count)
            layer = Layer((2, 4, 16, 8, 4), torch.float32)
            found.append(layer.step(leveled, [layer.text(40) for _ in range(5)], [(0, 40)] * 5))
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *found))


def test_drafts_leave_states_alone_until_they_are_replayed(every_level: Kernels) -> None:
    """Three drafts after token 10; two of them were right."""
    layer = Layer((2, 4, 16, 8, 4), torch.float32)
    text, other = layer.text(40), layer.text(40)
    layer.step(every_level, [text, other], [(0, 10), (0, 4)])

    def rows(replayed: int, unsure: int) -> StateRows:
        return StateRows(np.array([0, 1]), np.array([replayed, 0]), np.array([unsure, 0]))

    (drafted, _) = layer.step(every_level, [text, other], [(10, 14), (4, 5)], rows(0, 3))
    torch.testing.assert_close(drafted, text.read[10:14], **near(torch.float32))
    torch.testing.assert_close(layer.state(0, 11)[0], text.states[11], **near(torch.float32))
    (after, beside) = layer.step(every_level, [text, other], [(11, 15), (5, 6)], rows(2, 0))
    torch.testing.assert_close(after, text.read[11:15], **near(torch.float32))
    torch.testing.assert_close(beside, other.read[5:6], **near(torch.float32))
    torch.testing.assert_close(layer.state(0, 15)[0], text.states[15], **near(torch.float32))


def test_other_dtypes_are_left_to_the_reference() -> None:
    kernels = CpuKernels()
    layer = Layer((2, 4, 16, 8, 4), torch.float64)
    text = layer.text(9)
    torch.testing.assert_close(layer.step(kernels, [text], [(0, 9)])[0], text.read, atol=2e-6, rtol=2e-6)
    assert kernels.fallbacks["gated_delta_net"] == 1


def test_a_step_without_tokens_reads_nothing(every_level: Kernels) -> None:
    layer = Layer((2, 4, 16, 8, 4), torch.float32)
    nothing, heads = torch.empty(0, layer.num_channels), torch.empty(0, 4)
    found = every_level.gated_delta_net(nothing, layer.conv, heads, heads, layer.memory, no_tokens())
    assert found.shape == (0, 4, 8)
    assert all(layer.bytes_of(block).eq(MARK).all() for block in range(NUM_BLOCKS))
