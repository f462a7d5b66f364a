"""Gated DeltaNets: every backend and instruction set beside transformers' recurrence, and bit by bit beside itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from pageant.kernels.base import Kernels, StateRows
from pageant.kernels.cpu import CpuKernels
from pageant.kernels.states import StateBatch, StateMemory
from tests.kernels.state_steps import (
    BLOCK_SIZE,
    GROUPS,
    MARK,
    NUM_BLOCKS,
    make_way,
    marked_pages,
    own_spans,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Key heads, heads, numbers of keys and of values, and tokens of the convolution.
SIZES = [(2, 4, 16, 8, 4), (3, 3, 7, 5, 2), (1, 2, 33, 70, 3), (2, 2, 128, 128, 4)]


@dataclass
class Text:
    """A sequence's inputs, and what becomes of them from a state of zero on."""

    channels: Tensor
    decay: Tensor
    strength: Tensor
    read: Tensor
    states: list[Tensor]
    """[H, key_dim, value_dim], after every number of tokens."""


class Layer:
    """A layer's weights, and states in pages of two groups' blocks."""

    def __init__(self, sizes: tuple[int, ...], dtype: torch.dtype, page_bytes: int | None = None) -> None:
        key_heads, heads, key_dim, value_dim, kernel = sizes
        self._chance = torch.Generator().manual_seed(sum(sizes))
        self.num_channels = 2 * key_heads * key_dim + heads * value_dim
        size = 4 * heads * key_dim * value_dim + dtype.itemsize * (kernel - 1) * self.num_channels
        self.memory = StateMemory(
            num_heads=heads,
            key_dim=key_dim,
            value_dim=value_dim,
            num_channels=self.num_channels,
            kernel=kernel,
            dtype=dtype,
            pages=marked_pages(size, page_bytes),
        )
        self.conv = (self._randn(self.num_channels, kernel) / kernel).to(dtype)
        self.tables = torch.randperm(NUM_BLOCKS, generator=self._chance).view(GROUPS, 5, -1).int()

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._chance)

    def text(self, count: int) -> Text:
        """Return a sequence of `count` tokens, as transformers' functions compute it."""
        memory = self.memory
        channels = self._randn(count, self.num_channels).to(memory.dtype)
        decay = -self._randn(count, memory.num_heads).exp() / 4
        strength = self._randn(count, memory.num_heads).sigmoid()
        before = F.pad(channels.float().T, (memory.kernel - 1, 0))
        mixed = F.silu(F.conv1d(before, self.conv.float()[:, None], groups=self.num_channels).T).to(
            memory.dtype
        )
        split = mixed.float().split_with_sizes(memory.sizes, dim=1)
        dims = (memory.key_dim, memory.key_dim, memory.value_dim)
        query, key, value = (part.view(1, count, -1, dim) for part, dim in zip(split, dims, strict=True))
        states = [torch.zeros(memory.num_heads, memory.key_dim, memory.value_dim)]
        read = []
        for t in range(count):
            one = slice(t, t + 1)
            out, state = torch_recurrent_gated_delta_rule(
                *(part[:, one] for part in (query, key, value)),
                g=decay[None, one],
                beta=strength[None, one],
                initial_state=states[-1][None],
                output_final_state=True,
                use_qk_l2norm_in_kernel=True,
            )
            read.append(out[0, 0])
            states.append(state[0])
        return Text(channels, decay, strength, torch.stack(read), states)

    def step(
        self,
        kernels: Kernels,
        texts: Sequence[Text],
        spans: Sequence[tuple[int, int]],
        rows: StateRows | None = None,
    ) -> list[Tensor]:
        """Take a span of each text's tokens in, and return what is read of each: [n, H, value_dim].

        Replayed tokens count to a span, and are behind all others.
        """
        own = own_spans(spans, rows)
        order = [*own, *((first, start) for (first, _), (start, _) in zip(spans, own, strict=True))]
        names = ("channels", "decay", "strength")
        inputs = [
            torch.cat(
                [
                    getattr(text, name)[slice(*span)]
                    for text, span in zip((*texts, *texts), order, strict=True)
                ]
            )
            for name in names
        ]
        way = make_way(self.tables, spans, rows)
        wider = torch.cat([inputs[0], inputs[0][:, :3]], dim=1)
        read = kernels.gated_delta_net(
            wider[:, : self.num_channels], self.conv, inputs[1], inputs[2], self.memory, way
        )
        parts = read.split_with_sizes([last - first for first, last in order])
        return [torch.cat([parts[len(spans) + n], parts[n]]) for n in range(len(spans))]

    def state(self, sequence: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Return the matrices and inputs in the blocks of a sequence's last of so many tokens."""
        matrices, inputs = self.memory.read(self.tables[:, sequence, (tokens - 1) // BLOCK_SIZE, None].long())
        return matrices[0], inputs[0]

    def bytes_of(self, block: int) -> Tensor:
        return torch.cat([page.memory[block] for page in self.memory.pages])


def near(dtype: torch.dtype) -> dict[str, float]:
    step = {torch.float32: 2e-6, torch.bfloat16: 0.02, torch.float16: 0.002}[dtype]
    return {"atol": step, "rtol": step}


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
    found = every_level.gated_delta_net(nothing, layer.conv, heads, heads, layer.memory, StateBatch(()))
    assert found.shape == (0, 4, 8)
    assert all(layer.bytes_of(block).eq(MARK).all() for block in range(NUM_BLOCKS))
