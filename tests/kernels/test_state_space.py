"""Mamba-2 and short convolutions: every backend and level beside transformers, and bit by bit beside itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import mamba2_chunk_scan

from pageant.kernels.base import Kernels, StateRows
from pageant.kernels.cpu import CpuKernels
from pageant.kernels.states import StateBatch, StateMemory
from tests.kernels.state_steps import BLOCK_SIZE, GROUPS, MARK, NUM_BLOCKS, make_way, marked_pages, own_spans

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Groups, heads, numbers of keys and of values, and tokens of the convolution.
SIZES = [(2, 4, 16, 8, 4), (3, 3, 7, 5, 2), (1, 2, 33, 70, 3), (1, 6, 128, 64, 4)]


@dataclass
class Text:
    """A sequence's inputs, and what becomes of them from a state of zero on."""

    channels: Tensor
    decay: Tensor
    time_step: Tensor
    mixed: Tensor
    read: Tensor

    def __len__(self) -> int:
        return len(self.channels)


class Layer:
    """A layer's weights, and states in pages of two groups' blocks."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        dtype: torch.dtype,
        page_bytes: int | None = None,
        *,
        activated: bool = True,
    ) -> None:
        self.groups, heads, key_dim, value_dim, kernel = sizes
        self._chance = torch.Generator().manual_seed(sum(sizes))
        self._activated = activated
        channels = heads * value_dim + 2 * self.groups * key_dim
        size = 4 * heads * key_dim * value_dim + dtype.itemsize * (kernel - 1) * channels
        pages = marked_pages(size, page_bytes)
        self.memory = StateMemory(
            num_heads=heads,
            key_dim=key_dim,
            value_dim=value_dim,
            num_channels=channels,
            kernel=kernel,
            dtype=dtype,
            pages=pages,
        )
        self.conv = (self._randn(channels, kernel) / kernel).to(dtype)
        self.bias = (self._randn(channels) / 4).to(dtype) if activated else None
        self.skip = self._randn(heads)
        self.rates = -self._randn(heads).exp() / 4
        self.tables = torch.randperm(NUM_BLOCKS, generator=self._chance).view(GROUPS, 5, -1).int()

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._chance)

    def text(self, count: int) -> Text:
        """Return a sequence of `count` tokens, as transformers' functions compute it."""
        memory = self.memory
        channels = self._randn(count, memory.num_channels).to(memory.dtype)
        step = F.softplus(self._randn(count, memory.num_heads))
        before = F.pad(channels.float().T, (memory.kernel - 1, 0))
        bias = None if self.bias is None else self.bias.float()
        mixed = F.conv1d(before, self.conv.float()[:, None], bias, groups=memory.num_channels).T
        mixed = (F.silu(mixed) if self._activated else mixed).to(memory.dtype)
        keys = self.groups * memory.key_dim
        values, key, query = mixed.float().split([memory.num_heads * memory.value_dim, keys, keys], 1)
        read = mamba2_chunk_scan(
            values.view(1, count, memory.num_heads, -1),
            step[None],
            self.rates,
            key.view(1, count, self.groups, -1),
            query.view(1, count, self.groups, -1),
            chunk_size=16,
            D=self.skip,
        )
        return Text(channels, self.rates * step, step, mixed, read[0])

    def step(
        self,
        kernels: Kernels,
        texts: Sequence[Text],
        spans: Sequence[tuple[int, int]],
        rows: StateRows | None = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Take a span of each text's tokens in; return what the convolution makes of them, and what is read of each.

        Replayed tokens count to a span, and are behind all others.
        """
        own = own_spans(spans, rows)
        order = [*own, *((first, start) for (first, _), (start, _) in zip(spans, own, strict=True))]
        pairs = list(zip((*texts, *texts), order, strict=True))
        channels = torch.cat([text.channels[slice(*span)] for text, span in pairs])
        decay = torch.cat([text.decay[slice(*span)] for text, span in pairs])
        time_step = torch.cat([text.time_step[slice(*span)] for text, span in pairs])
        way = make_way(self.tables, spans, rows)
        wider = torch.cat([channels, channels[:, :3]], dim=1)[:, : self.memory.num_channels]
        mixed = kernels.causal_conv(wider, self.conv, self.bias, self.memory, way, activated=self._activated)
        read = kernels.state_space(mixed, decay, time_step, self.skip, self.memory, way)
        counts = [last - first for first, last in order]
        found = list(zip(mixed.split(counts), read.split(counts), strict=True))
        return [
            tuple(
                torch.cat([after, before])
                for after, before in zip(found[len(spans) + n], found[n], strict=True)
            )
            for n in range(len(spans))
        ]  # type: ignore[misc]

    def state(self, sequence: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Return the matrices and inputs in the blocks of a sequence's last of so many tokens."""
        return self.memory.read(self.tables[:, sequence, (tokens - 1) // BLOCK_SIZE, None].long())

    def bytes_of(self, block: int) -> Tensor:
        return torch.cat([page.memory[block] for page in self.memory.pages])


def near(dtype: torch.dtype) -> dict[str, float]:
    step = {torch.float32: 1e-5, torch.bfloat16: 0.03, torch.float16: 0.004}[dtype]
    return {"atol": step, "rtol": step}


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
        nothing, layer.conv, layer.bias, layer.memory, StateBatch(()), activated=True
    )
    read = every_level.state_space(mixed, heads, heads, layer.skip, layer.memory, StateBatch(()))
    assert mixed.shape == nothing.shape and read.shape == (0, 4, 8)
    assert all(layer.bytes_of(block).eq(MARK).all() for block in range(NUM_BLOCKS))
