"""An actor in the place of a sleeping executor: it has no KV cache, computes nothing, and says so.

It is another actor than the executor, so that an executor's life has one state: it computes. What the executor was, and
will be when it wakes, stands in this one's options; the two follow one another as any actor does that is swapped. So
the scheduler takes sleep for the end of an executor that is nobody's fault, and waking for another executor, whose
memory is empty. In the process in which both live, weights pass from one to the other.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from pageant.actors.executor.kept_weights import KeptWeights
from pageant.actors.executor.loading import Loading
from pageant.actors.executor.options import ExecutorOptions
from pageant.actors.runtime import ActorOptions, receives
from pageant.actors.runtime.classes import load_actor_class
from pageant.models.adapters.checkpoint import RANK_MAX, AdapterCheckpoint
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.protocol.adapters import (
    ADAPTER_OWNERS,
    ADAPTERS,
    AdapterLoaded,
    AdapterUnloaded,
    AddedAdapter,
    LoadAdapter,
    UnloadAdapter,
    adapter_owners,
    offered_adapters,
)
from pageant.protocol.errors import BadRequest
from pageant.protocol.guiding import GuidesLost, TokenMasks
from pageant.protocol.lifecycle import ASLEEP, SLEEPING_CLASS, WEIGHT_VERSION, Part, SleepLevel
from pageant.protocol.roles import EXECUTOR
from pageant.protocol.statistics import ExecutorStatistics, GetExecutorStatistics
from pageant.protocol.stepping import MAX_MODEL_LEN, StepPlan
from pageant.protocol.supervision import ActorDown, ActorUp, Facts

if TYPE_CHECKING:
    from pageant.actors.executor.runners.loaded_model import LoadedModel

PLACE = "actors.executor"  # in a topology


class SleepingExecutor(Loading):
    """Keeps the weights, or nothing, until the executor wakes."""

    role = EXECUTOR
    heavy = True
    follower = SLEEPING_CLASS

    class Options(ActorOptions, frozen=True, kw_only=True):
        """See `protocol.lifecycle.SleepingOptions`."""

        awake_class: str
        awake_options: str
        level: SleepLevel
        woken: tuple[Part, ...] = ()
        device: str = "cpu"
        known_max_model_len: int | None = None

        def __post_init__(self) -> None:
            self.awake()

        def awake(self) -> ActorOptions:
            """Return the options of the executor when it wakes, on the device that this one has.

            Raises:
                ValueError: it does not take them.
            """
            cls = load_actor_class(self.awake_class, f"{PLACE}.class")
            given = json.loads(self.awake_options)
            found = msgspec.convert(
                given | ({"device": self.device} if "device" in given else {}), cls.Options
            )
            assert isinstance(found, ActorOptions), "they are an actor's"
            return found

        @property
        def num_members(self) -> int:
            """See `ActorOptions`. A group sleeps with all its members."""
            return self.awake().num_members

        @property
        def members_because(self) -> str:
            """See `ActorOptions`."""
            return self.awake().members_because

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._awake = options.awake()
        self._awake_class = load_actor_class(options.awake_class, f"{PLACE}.class")
        self.features = self._awake_class.features
        self._model: LoadedModel | None = None

    @property
    def rank(self) -> int:
        """See `Loading`."""
        return int(self.name.rpartition("/")[2]) if self._awake.num_members > 1 else 0

    async def on_start(self) -> None:
        await self.offload(self._settle)

    def _settle(self) -> None:
        """Have what is to be there, where it is to be, and give back the memory of everything else."""
        if "weights" in self.options.woken:
            if self._model is not None:
                self._model.unpark()
            elif isinstance(self._awake, ExecutorOptions) and getattr(
                self._awake_class, "loads_weights", False
            ):
                self._model = self._load_weights(self._awake)
        elif self._model is not None:
            self._model.park()
        if "torch" in sys.modules:
            from pageant.kernels.memory import release

            release()

    def inherit(self, left: object) -> None:
        """Keep the weights that an executor leaves, or that another sleeper kept, if they are to be kept."""
        model = left.model if isinstance(left, KeptWeights) else left
        keeps = self.options.level == 1 or "weights" in self.options.woken
        if keeps and model is not None and isinstance(self._awake, ExecutorOptions):
            kept: Any = model
            self._model = kept if KeptWeights(kept).is_of(self._awake) else None

    def leave(self) -> object | None:
        """Leave the weights to the executor that wakes."""
        return None if self._model is None else KeptWeights(self._model)

    def facts(self) -> Facts:
        """Return how deep it sleeps, and what requests may ask for when it wakes."""
        configured: dict[str, str] = getattr(self._awake, "adapters", {})
        added: dict[str, AddedAdapter] = getattr(self._awake, "added_adapters", {})
        facts: Facts = {
            ASLEEP: self.options.level,
            WEIGHT_VERSION: getattr(self._awake, "weight_version", ""),
            ADAPTERS: offered_adapters(configured, added),
            ADAPTER_OWNERS: adapter_owners(added),
        }
        if self.options.known_max_model_len is not None:
            facts[MAX_MODEL_LEN] = self.options.known_max_model_len
        return facts

    @receives
    def compute(self, message: StepPlan | TokenMasks | GuidesLost) -> None:
        """Pass over what was for the executor that fell asleep."""

    @receives
    def peer(self, event: ActorUp | ActorDown) -> None:
        """Ignore the event: no peer is watched."""

    @receives
    async def load_adapter(self, request: LoadAdapter) -> AdapterLoaded:
        """Look at an adapter, which is loaded when the executor wakes."""
        await self.offload(self._check_adapter, request.adapter.folder)
        return AdapterLoaded()

    def _check_adapter(self, folder: str) -> None:
        model: str = getattr(self._awake, "model", "")
        try:
            AdapterCheckpoint(folder).targets(
                Checkpoint(model), getattr(self._awake, "max_lora_rank", RANK_MAX)
            )
        except CheckpointError as error:
            raise BadRequest(str(error), "folder") from None

    @receives
    def unload_adapter(self, request: UnloadAdapter) -> AdapterUnloaded:
        """The executor wakes without it."""
        return AdapterUnloaded()

    @receives
    def statistics(self, request: GetExecutorStatistics) -> ExecutorStatistics:
        """Return the statistics of a sleeping executor."""
        kept = 0 if self._model is None else self._model.num_bytes
        return ExecutorStatistics(
            device=self.options.device,
            dtype="",
            num_blocks=0,
            block_size=0,
            memory_bytes={"weights": kept, "kv_cache": 0},
            busy_seconds=0.0,
            steps=0,
            rows=0,
            tokens=0,
            histograms={},
        )
