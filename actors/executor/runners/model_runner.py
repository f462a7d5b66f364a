"""The seam between the executor and what computes: what a model runner is. The simulator puts its own here.

Everything above it is numpy and messages; torch begins below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.tiers.moving import Move
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.pooling import PooledRows
from pageant.protocol.verification import NO_DRAFTS, Drafts

if TYPE_CHECKING:
    from pageant.actors.executor.guided.pending_sample import PendingSample, PooledResults

__all__ = ["Host", "KnownTokens", "ModelRunner", "StepTokens"]


class StepTokens(Protocol):
    """The tokens of a step, perhaps still on their way."""

    ready: bool
    """Whether they can be had without waiting."""

    failed: dict[int, str]
    """Why some drawing rows have no right token, by their places."""

    missing: npt.NDArray[np.int64]
    """Places of the drawing rows whose masks had not come: their tokens here mean nothing."""

    late: PendingSample | None
    """Those of them, if any, whose tokens are to be drawn when they come."""

    def token_ids(self) -> npt.NDArray[np.int64]:
        """Return a token for each of the step's drawing rows, int64 [D]. Waits for the device."""

    proposed: Drafts
    """What comes next, for each of the plan's drawing rows, if there is a proposer."""

    drafting_seconds: float
    """That these took to be made."""

    def logprobs(self) -> tuple[Logprobs | None, Logprobs | None]:
        """Return the log-probabilities of drawn and of prompts' tokens, where asked for; once the tokens are there."""

    def pooled(self) -> PooledRows | None:
        """Return the results of sequences that are pooled, once the tokens are there."""


class KnownTokens:
    """The tokens of a step, one for each of its drawing rows, that are there already. See `StepTokens`."""

    ready = True
    drafting_seconds = 0.0

    def __init__(
        self,
        token_ids: npt.NDArray[np.int64],
        drawn: Logprobs | None = None,
        prompts: Logprobs | None = None,
        failed: dict[int, str] | None = None,
    ) -> None:
        self._token_ids = token_ids
        self._logprobs = drawn, prompts
        self.failed = failed or {}
        self.missing = np.empty(0, np.int64)
        self.late: PendingSample | None = None
        self.proposed: Drafts = NO_DRAFTS
        self.pooling: PooledResults | None = None

    def token_ids(self) -> npt.NDArray[np.int64]:
        """Return the tokens, int64 [D]."""
        return self._token_ids

    def logprobs(self) -> tuple[Logprobs | None, Logprobs | None]:
        """See `StepTokens`."""
        return self._logprobs

    def pooled(self) -> PooledRows | None:
        """See `StepTokens`."""
        return None if self.pooling is None else self.pooling.columns()


class Host(Protocol):
    """Blocks in the host's memory."""

    block_bytes: int

    def move(self, move: Move) -> None:
        """Makes one move; returns when it has been made. Never called twice at once, but beside `launch`."""


class ModelRunner(Protocol):
    """Computes steps."""

    num_blocks: int
    max_model_len: int  # tokens of the longest request that the KV cache holds
    dtype: str
    kernels: str
    """The name of the kernels' backend, or ""."""
    windows: tuple[int | None, ...]
    """Of each group of layers, how many tokens they attend over at most; None is all."""
    num_states: int
    """How many of these groups, the last ones, hold states of recurrent layers."""
    whole_prompts: bool
    """Whether a sequence is computed whole, in one step, and nothing of it is kept."""

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Return the bytes that weights and KV cache take, and the device's free and total memory."""

    @property
    def preparations(self) -> dict[str, int]:
        """Return how many kernels were loaded and graphs captured, by the names of `ExecutorStatistics`."""

    @property
    def is_preparing(self) -> bool:
        """Tell whether the step at hand waits for a kernel to be compiled: seconds. Asked from another thread."""

    @property
    def host(self) -> Host:
        """Return the memory for blocks that there is no room for."""

    def leave(self) -> object | None:
        """Return what the next runner of this process may begin with (`loaded`), if it needs the same weights. This one
        computes no more."""

    def add_adapter(self, name: str, folder: str) -> None:
        """Load an adapter, while steps are computed that do not have it. Raises CheckpointError."""

    def remove_adapter(self, name: str) -> None:
        """Forget an adapter that no step at hand has."""

    def launch(self, inputs: StepInputs) -> StepTokens | PendingSample:
        """Begins a step. The next may be launched before this one's tokens are there; it finds those that it
        computes (`StepInputs.unknown`) on the device. A step stays pending if its masks are not all there."""

    def draw(self, pending: PendingSample) -> StepTokens:
        """Draws the rows that have their masks."""
