"""A model runner of your own in a few lines: derive from `PlainRunner` and from `PlainExecutor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pageant.actors.executor.actor import Executor
from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.runners.model_runner import Host, KnownTokens, ModelRunner, StepTokens
from pageant.actors.executor.tiers.moving import Move
from pageant.protocol.errors import BadRequest
from pageant.protocol.roles import Feature

if TYPE_CHECKING:
    from pageant.actors.executor.guided.pending_sample import PendingSample

__all__ = ["KnownTokens", "PlainExecutor", "PlainRunner", "StepInputs"]


class NoHost:
    """Blocks are kept nowhere but in the runner's own memory: none is ever moved."""

    block_bytes = 0

    def move(self, move: Move) -> None:
        """See `Host`."""
        raise NotImplementedError("there is no memory of the host's")


class PlainRunner:
    """Base of a runner: everything but `launch`, for one that knows a step's tokens when `launch` returns.

    Args:
        num_blocks: that its memory holds.
        max_model_len: tokens of the longest request.
    """

    dtype = "float32"
    kernels = ""
    windows: tuple[int | None, ...] = (None,)
    num_states = 0
    whole_prompts = False
    host: Host = NoHost()

    def __init__(self, num_blocks: int, max_model_len: int) -> None:
        self.num_blocks, self.max_model_len = num_blocks, max_model_len

    @property
    def memory_bytes(self) -> dict[str, int]:
        """See `ModelRunner`."""
        return {}

    @property
    def is_preparing(self) -> bool:
        """See `ModelRunner`."""
        return False

    @property
    def preparations(self) -> dict[str, int]:
        """See `ModelRunner`."""
        return {}

    def launch(self, inputs: StepInputs) -> KnownTokens:
        """Compute a step, and return a token for each of its drawing rows (`inputs.rows`)."""
        raise NotImplementedError

    def draw(self, pending: PendingSample) -> StepTokens:
        """See `ModelRunner`."""
        raise NotImplementedError("no step of this runner waits for masks")

    def leave(self) -> object | None:
        """See `ModelRunner`."""
        return None

    def add_adapter(self, name: str, folder: str) -> None:
        """See `ModelRunner`."""
        raise BadRequest(f"{type(self).__name__} computes no adapters", name)

    def remove_adapter(self, name: str) -> None:
        """See `ModelRunner`."""


class PlainExecutor(Executor):
    """The executor over a runner of your own: override `open_runner`, and declare the `features` that it honours."""

    features: frozenset[Feature] = frozenset()
    loads_weights = False
    follower = ""

    def open_runner(self) -> ModelRunner:
        """Return the runner. Called once, in the executor's own thread."""
        raise NotImplementedError
