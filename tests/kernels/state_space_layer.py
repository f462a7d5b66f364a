"""Mamba-2 layer of random weights and texts, as transformers' functions compute them, with states in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import mamba2_chunk_scan

from pageant.kernels.base import Kernels, StateRows
from pageant.kernels.states import StateMemory
from tests.kernels.state_steps import BLOCK_SIZE, GROUPS, NUM_BLOCKS, make_way, marked_pages, own_spans


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
        device: torch.device | str = "cpu",
    ) -> None:
        self.groups, heads, key_dim, value_dim, kernel = sizes
        self._chance = torch.Generator().manual_seed(sum(sizes))
        self._activated = activated
        channels = heads * value_dim + 2 * self.groups * key_dim
        size = 4 * heads * key_dim * value_dim + dtype.itemsize * (kernel - 1) * channels
        pages = marked_pages(size, page_bytes, device)
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
        self.tables = torch.randperm(NUM_BLOCKS, generator=self._chance).view(GROUPS, 5, -1).int().to(device)

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
        device = self.tables.device
        wider = torch.cat([channels, channels[:, :3]], dim=1).to(device)[:, : self.memory.num_channels]
        conv, bias = self.conv.to(device), None if self.bias is None else self.bias.to(device)
        mixed = kernels.causal_conv(wider, conv, bias, self.memory, way, activated=self._activated)
        read = kernels.state_space(
            mixed, decay.to(device), time_step.to(device), self.skip.to(device), self.memory, way
        )
        mixed, read = mixed.cpu(), read.cpu()
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
        found = self.memory.read(self.tables[:, sequence, (tokens - 1) // BLOCK_SIZE, None].long())
        return found[0].cpu(), found[1].cpu()

    def bytes_of(self, block: int) -> Tensor:
        return torch.cat([page.memory[block] for page in self.memory.pages])


def near(dtype: torch.dtype) -> dict[str, float]:
    step = {torch.float32: 1e-5, torch.bfloat16: 0.03, torch.float16: 0.004}[dtype]
    return {"atol": step, "rtol": step}
