"""Screening of logits: computes only those that the sampled token can have, by bounds that cost half as much to
read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.kernels.base import NeededLogits, SamplingTensors
from pageant.kernels.cpu.compiled import CompiledKernels
from pageant.kernels.panels import PANEL_ROWS
from pageant.kernels.quantized import QuantizedWeight

__all__ = ["ScreeningKernels"]


class ScreeningKernels(CompiledKernels):
    """The `Kernels` of recordings that screen logits."""

    def screen(self, hidden: Tensor, head: QuantizedWeight, params: SamplingTensors) -> NeededLogits:
        """Return the logits of one hidden state [1, N] that are needed to sample its token with the first of
        `params`.

        Logits that are not needed are -inf in `into`. The sampled token is the same, except for one in 10^13.
        All logits are needed where `top_p` decides alone, or `top_k` is above 256.

        Args:
            head: [V, N], in halves; for hidden states of a dtype of `halves`.
        """
        assert head.lower is not None and len(hidden) == 1, "one row, by a head in halves"
        screen = self._functions[hidden.dtype].screen
        assert screen is not None
        vocab_size, size = head.shape
        logits = self._empty(torch.float32, 1, vocab_size)
        needed = torch.empty(3 + 2 * (vocab_size // PANEL_ROWS), dtype=torch.int64)
        screen(
            hidden.data_ptr(),
            head.values.data_ptr(),
            head.lower.data_ptr(),
            head.scales.data_ptr(),
            size,
            vocab_size,
            params.temperature.data_ptr(),
            params.top_k.data_ptr(),
            params.top_p.data_ptr(),
            params.min_p.data_ptr(),
            params.seed.data_ptr(),
            params.sample.data_ptr(),
            params.position.data_ptr(),
            logits.data_ptr(),
            needed.data_ptr(),
        )
        return NeededLogits(needed, logits)
