"""The part of the contract of a kernel backend that turns logits into tokens.

Shapes are written with R rows to sample and V the size of the vocabulary.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from pageant.kernels.batches import SamplingTensors, TokenLogprobs, TokenMasks


@runtime_checkable
class LogitKernels(Protocol):
    """The functions of every backend on logits. `pageant.kernels.base.Kernels` has them among its own."""

    def mask_logits(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        """Mutate rows (int64 [n]) of logits (float32 [R, V]): tokens that may not be drawn become -inf.

        Token t of row rows[i] may be drawn if bit t % 32 of bits[i, t // 32] is 1: int32 [n, V / 32 rounded up].
        """
        ...

    def sample(self, logits: Tensor, params: SamplingTensors, masks: TokenMasks | None = None) -> Tensor:
        """Draw a token for each row of logits (float32 [R, V]); returns int64 [R].

        With masks it is as after `mask_logits`, and the logits of their rows may have been overwritten so.

        A greedy row takes the largest logit, the lowest id on a tie. The others draw by Gumbel-max
        (see `pageant.kernels.sampling`): a row's token depends on its own logits and parameters alone.
        """
        ...

    def top_logprobs(self, logits: Tensor, tokens: Tensor, k: int) -> TokenLogprobs:
        """Return the log-softmax of logits (float32 [R, V]) at tokens (int64 [R]) and at the k largest.

        k is from 0 to V.
        """
        ...
