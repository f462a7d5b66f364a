"""Log-probabilities and perplexities by this project's own decoder, of a checkpoint that is quantised or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pageant import kernels
from pageant.kernels.quantized import QuantizedWeight
from pageant.kernels.reference import ReferenceKernels
from pageant.kernels.tiled import LinearWeight
from pageant.models import Checkpoint
from pageant.models.decoder import Decoder
from pageant.models.loading import load_decoder
from pageant.models.quantizing.passes import BLOCK_SIZE, Pass

__all__ = ["RoundedInputs", "log_probabilities", "perplexity"]


class RoundedInputs(ReferenceKernels):
    """Implements `Kernels`; inputs of quantised weights are rounded to 8 bits by token, as W8A8 has it elsewhere."""

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
        """See `Kernels.linear`."""
        if isinstance(weight, QuantizedWeight):
            scales = x.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 127  # [T, 1]
            x = (x / scales).round() * scales
        return ReferenceKernels.linear(x, weight, bias)


@torch.inference_mode()
def log_probabilities(
    folder: Path, token_ids: Sequence[int], *, dtype: str = "float32", rounds_inputs: bool = False
) -> Tensor:
    """Return float32 [T, vocab_size], computed in a dtype with the weights that the checkpoint stands for."""
    backend = RoundedInputs() if rounds_inputs else kernels.load("reference")
    decoder = load_decoder(Checkpoint(folder), dtype, kernels=backend)
    return _of(decoder, token_ids)


@torch.inference_mode()
def perplexity(folder: Path, sequences: Sequence[Sequence[int]]) -> float:
    """Return the perplexity of sequences of token ids, each alone, in float32."""
    decoder = load_decoder(Checkpoint(folder), "float32", kernels=kernels.load())
    loss, count = 0.0, 0
    for sequence in sequences:
        following = torch.tensor(sequence[1:])
        found = _of(decoder, sequence)[:-1].gather(1, following[:, None])
        loss -= float(found.sum(dtype=torch.float64))
        count += len(following)
    return math.exp(loss / count)


def _of(decoder: Decoder, token_ids: Sequence[int]) -> Tensor:
    one = Pass([token_ids])
    caches = decoder.allocate_kv_caches(one.num_blocks, BLOCK_SIZE)
    hidden = decoder.forward(one.token_ids, one.positions, one.batch, caches)
    return decoder.logits(hidden).log_softmax(-1)
