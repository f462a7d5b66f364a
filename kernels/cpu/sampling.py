"""Sampling of tokens from logits, and log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.kernels.base import SamplingTensors, TokenLogprobs, TokenMasks
from pageant.kernels.cpu.compiled import CompiledKernels

__all__ = ["SamplingKernels"]


class SamplingKernels(CompiledKernels):
    """The `Kernels` that turn logits into tokens."""

    def sample(self, logits: Tensor, params: SamplingTensors, masks: TokenMasks | None = None) -> Tensor:
        """See `Kernels.sample`."""
        if masks is None:
            return self.sample_by_table(logits, params)
        slots = torch.full((len(logits),), -1)
        slots[masks.rows] = torch.arange(len(masks.rows))
        return self.sample_by_table(logits, params, slots, masks.bits)

    def sample_by_table(
        self,
        logits: Tensor,
        params: SamplingTensors,
        slots: Tensor | None = None,
        bits: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Sample as `sample` does, with masks in a table. Returns int64 [R].

        Args:
            logits: float32 [R, V].
            slots: int64 [R], the mask of each row in the table. A row that is UNMASKED has none, as all have
                without the argument. The token of a row that is VOID is 0.
            bits: int32 [S, V / 32 rounded up], see `TokenMasks`.
            places: int64 [R], the row of `logits` that each row samples from; None is its own.
        """
        rows, vocab_size = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64)
        self._library.sample(
            logits.data_ptr(),
            logits.stride(0),
            None if places is None else places.data_ptr(),
            rows,
            vocab_size,
            params.temperature.data_ptr(),
            params.top_k.data_ptr(),
            params.top_p.data_ptr(),
            params.min_p.data_ptr(),
            params.seed.data_ptr(),
            params.sample.data_ptr(),
            params.position.data_ptr(),
            *(
                (0, 0, 0)
                if slots is None or bits is None
                else (slots.data_ptr(), bits.data_ptr(), bits.shape[1])
            ),
            tokens.data_ptr(),
        )
        return tokens

    def mask_logits(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        """See `Kernels.mask_logits`."""
        self._library.mask_logits(
            logits.data_ptr(),
            logits.stride(0),
            logits.shape[1],
            rows.data_ptr(),
            len(rows),
            bits.data_ptr(),
            bits.shape[1],
        )

    def top_logprobs(self, logits: Tensor, tokens: Tensor, k: int) -> TokenLogprobs:
        """See `Kernels.top_logprobs`."""
        rows, vocab_size = logits.shape
        found = TokenLogprobs(
            chosen=torch.empty(rows),
            ranks=torch.empty(rows, dtype=torch.int32),
            top_tokens=torch.empty(rows, k, dtype=torch.int32),
            top=torch.empty(rows, k),
        )
        self._library.top_logprobs(
            logits.data_ptr(),
            logits.stride(0),
            rows,
            vocab_size,
            tokens.data_ptr(),
            k,
            *(part.data_ptr() for part in found),
        )
        return found
