"""The short causal convolutions of recurrent layers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from pageant.kernels.states import StateBatch, StateMemory

__all__ = ["causal_conv", "convolve"]


def causal_conv(
    channels: Tensor,
    conv: Tensor,
    bias: Tensor | None,
    memory: StateMemory,
    batch: StateBatch,
    *,
    activated: bool,
) -> Tensor:
    """See `Kernels.causal_conv`."""
    mixed = torch.empty_like(channels, memory_format=torch.contiguous_format)
    for strand in batch.strands:
        _, before = memory.read(strand.blocks)
        before.masked_fill_(strand.fresh, 0)
        for run in strand.runs:
            inputs = torch.cat([before, channels[run.tokens]], dim=1)
            mixed[run.tokens] = convolve(inputs, conv, bias, activated=activated)
            before = inputs[:, inputs.shape[1] - memory.kernel + 1 :]
            if run.blocks is not None:
                memory.write_inputs(run.blocks, before)
    return mixed


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activated: bool = True) -> Tensor:
    """Return a causal convolution of each channel, or the SiLU of it, [b, n, C] in x's dtype.

    x: [b, K - 1 + n, C], with the K - 1 inputs before the n tokens. weight: [C, K]. bias: [C]. Sums are in float32, in
    the order of the kernel, so that a token's numbers do not depend on how many are computed with it.
    """
    kernel = weight.shape[1]
    count = x.shape[1] - kernel + 1
    taps = weight.float().unbind(1)
    total = x[:, :count].float() * taps[0]
    for place in range(1, kernel):
        total += x[:, place : place + count].float() * taps[place]
    if bias is not None:
        total += bias.float()
    return (silu(total) if activated else total).to(x.dtype)
