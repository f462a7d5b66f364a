"""Medusa's heads: head i guesses the token i + 2 places after the one that a hidden state is of.

After Cai et al., Medusa (2024): residual blocks with a SiLU, then a language model's head of its own; without one in
the checkpoint, the target's. Tensors are named as its authors do (`0.0.linear.weight`, `0.1.weight`, with or without
`medusa_head.` before them), or as vLLM does (`blocks.0.layers.0.weight`, `lm_heads.0.weight`).
"""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from pageant.models.decoder import Decoder
from pageant.models.heads.reading import HeadTensors

__all__ = ["MedusaHeads"]


class MedusaHeads:
    """Heads of one target.

    Raises:
        CheckpointError: the heads in the folder are not for it.
    """

    def __init__(self, path: Path, target: Decoder, hidden_size: int) -> None:
        tensors = HeadTensors(path, target.dtype, target.device)
        config = tensors.config
        self.num_heads = config.count("medusa_num_heads" if "medusa_num_heads" in config else "num_heads")
        layers = config.count(
            "medusa_num_layers" if "medusa_num_layers" in config else "num_hidden_layers", 1
        )
        tensors.rename(_names(self.num_heads, layers))
        self._target = target
        self._blocks = [
            [
                (
                    tensors.take(f"{head}.{layer}.linear.weight", hidden_size, hidden_size),
                    tensors.take(f"{head}.{layer}.linear.bias", hidden_size),
                )
                for layer in range(layers)
            ]
            for head in range(self.num_heads)
        ]
        vocab_size = target.spec.vocab_size
        self._heads = [
            tensors.take(name, vocab_size, hidden_size) if name in tensors else None
            for name in (f"{head}.{layers}.weight" for head in range(self.num_heads))
        ]
        tensors.finish()

    def logits(self, head: int, hidden: Tensor) -> Tensor:
        """Return float32 [R, vocab_size] for hidden states [R, hidden_size]."""
        kernels = self._target.kernels
        for weight, bias in self._blocks[head]:
            hidden = hidden + F.silu(kernels.linear(hidden, weight, bias))
        own = self._heads[head]
        return self._target.logits(hidden) if own is None else kernels.logits(hidden, own)


def _names(num_heads: int, layers: int) -> dict[str, str]:
    names = {"medusa_heads.": "", "medusa_head.": ""}
    for head in range(num_heads):
        names[f"lm_heads.{head}."] = f"{head}.{layers}."
        names |= {
            f"blocks.{head}.layers.{layer}.{name}": f"{head}.{layer}.linear.{name}"
            for layer in range(layers)
            for name in ("weight", "bias")
        }
    return names
