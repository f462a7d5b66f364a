"""The sampled tokens of a step that torch computed, on the host or on their way to it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.actors.executor.batch.scoring import Scoring
from pageant.actors.executor.guided.pending_sample import PooledResults
from pageant.actors.executor.runners.model_runner import KnownTokens
from pageant.protocol.logprobs import Logprobs

__all__ = ["SampledTokens", "sampled_tokens"]


class SampledTokens(KnownTokens):
    """Tokens that are on the host, as those of a CPU always are, with scores that may still be on the device."""

    def __init__(
        self,
        token_ids: npt.NDArray[np.int64],
        drawn: Scoring | None = None,
        prompts: Scoring | None = None,
        failed: dict[int, str] | None = None,
        pooling: PooledResults | None = None,
    ) -> None:
        super().__init__(token_ids, failed=failed)
        self.pooling = pooling
        self._scorings = drawn, prompts

    def logprobs(self) -> tuple[Logprobs | None, Logprobs | None]:
        """See `StepTokens`."""
        drawn, prompts = (scoring.columns() if scoring is not None else None for scoring in self._scorings)
        return drawn, prompts


class _TokensOnDevice(SampledTokens):
    """Tokens on their way to the host, after what was found about them."""

    ready = False

    def __init__(
        self, tokens: Tensor, drawn: Scoring | None, prompts: Scoring | None, failed: dict[int, str]
    ) -> None:
        super().__init__(np.empty(0, np.int64), drawn, prompts, failed)
        self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        self._host.copy_(tokens, non_blocking=True)
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._arrived.record()

    def token_ids(self) -> npt.NDArray[np.int64]:
        """Return the tokens, int64 [D]. Waits for the device."""
        self._arrived.synchronize()
        return self._host.numpy().copy()  # the memory is used again once this is forgotten


def sampled_tokens(
    tokens: Tensor, drawn: Scoring | None, prompts: Scoring | None, failed: dict[int, str]
) -> SampledTokens:
    """Return tokens, int64 [D], with their scores; begin to copy those of a GPU to the host.

    Args:
        failed: why some rows have no right token, by their places.
    """
    if tokens.is_cuda:
        return _TokensOnDevice(tokens, drawn, prompts, failed)
    return SampledTokens(tokens.numpy(), drawn, prompts, failed)
