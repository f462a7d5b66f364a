"""Gated DeltaNet of random weights and texts, as transformers' recurrence computes them, with states in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from pageant.kernels.base import Kernels, StateRows
from pageant.kernels.states import StateMemory
from tests.kernels.state_steps import BLOCK_SIZE, GROUPS, NUM_BLOCKS, make_way, marked_pages, own_spans


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

    def __init__(
        self,
        sizes: tuple[int, ...],
        dtype: torch.dtype,
        page_bytes: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
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
            pages=marked_pages(size, page_bytes, device),
        )
        self.conv = (self._randn(self.num_channels, kernel) / kernel).to(dtype)
        self.tables = torch.randperm(NUM_BLOCKS, generator=self._chance).view(GROUPS, 5, -1).int().to(device)

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
        device = self.tables.device
        wider = torch.cat([inputs[0], inputs[0][:, :3]], dim=1).to(device)[:, : self.num_channels]
        decay, strength = (part.to(device) for part in inputs[1:])
        read = kernels.gated_delta_net(wider, self.conv.to(device), decay, strength, self.memory, way)
        parts = read.cpu().split_with_sizes([last - first for first, last in order])
        return [torch.cat([parts[len(spans) + n], parts[n]]) for n in range(len(spans))]

    def state(self, sequence: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Return the matrices and inputs in the blocks of a sequence's last of so many tokens."""
        matrices, inputs = self.memory.read(self.tables[:, sequence, (tokens - 1) // BLOCK_SIZE, None].long())
        return matrices[0].cpu(), inputs[0].cpu()

    def bytes_of(self, block: int) -> Tensor:
        return torch.cat([page.memory[block] for page in self.memory.pages])


def near(dtype: torch.dtype) -> dict[str, float]:
    step = {torch.float32: 2e-6, torch.bfloat16: 0.02, torch.float16: 0.002}[dtype]
    return {"atol": step, "rtol": step}
