"""Changes to a model while it is served: pause and resume, reset of caches, adapters, sleep.

    operator ──PauseModel, ResumeModel, ResetModelCache, GetModelState──▶ lifecycle
    operator ──AddAdapter, RemoveAdapter, SleepModel, WakeModel, UpdateWeights──▶ lifecycle
    frontend ──LoadModel──▶ lifecycle, where models are loaded on demand
    lifecycle ──PauseScheduling, ResumeScheduling──▶ scheduler
    lifecycle ──ResetPrefixCache──▶ blocks
    lifecycle ──PrepareWeights, DropPrepared──▶ executor
    lifecycle ──AmendActor, SwapActor, GetActor──▶ supervisor
    lifecycle ──LearnModel──▶ frontends, so that they know before the operator does

An operator is an `Engine`, an HTTP server or a command. A change that must outlive a death is written into
the options of its actor at the supervisor (`AmendActor`) before that actor is told. The actor's next life
then begins with the change.

`replica` is the prefix of the names of a model's actors; "" where there is one model.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pageant.protocol.message import Message, Request

PauseMode = Literal["abort", "wait", "keep"]
"""Fate of the requests that are open when a model pauses.

abort: they end at once, with the output that they have.
wait: they are computed to their ends.
keep: they stop where they are, and go on when the model resumes.

Requests that come later wait, whatever the mode.
"""

WAKE_TAGS = ("weights", "kv_cache", "scheduling")
"""Parts of a model that can be woken by themselves, in this order."""

ANSWER_SECONDS = 120.0
"""The longest time that an operator waits for an answer."""
LOAD_SECONDS = 600.0
"""The longest time that an operator waits for an adapter to be loaded."""
DRAIN_SECONDS = 7 * 86_400.0
"""The longest time that an operator waits for a pause, which waits for open requests."""


# To a scheduler.


PAUSED = "paused"
"""The name of a scheduler's fact: 1 while it is paused, else 0."""


class SchedulingPaused(Message, frozen=True, kw_only=True):
    """State of a scheduler after a pause was asked for.

    Attributes:
        done: it is paused, and (as an answer to `AwaitRest`) at rest.
        num_open: requests that it holds.
    """

    done: bool
    num_open: int


class PauseScheduling(Request[SchedulingPaused], frozen=True, kw_only=True):
    """Ask a scheduler to plan no more steps. It answers at once; `AwaitRest` waits for the steps under way.

    Attributes:
        mode: the fate of its open requests.
        release: running requests free their KV memory, and are recomputed afterwards.
        if_idle: do nothing if any request is open.
    """

    mode: PauseMode = "keep"
    release: bool = False
    if_idle: bool = False


class AwaitRest(Request[SchedulingPaused], frozen=True, kw_only=True):
    """Ask a scheduler to answer when its pause is complete.

    A pause is complete when no step is computed and, with `wait`, all requests have ended. A scheduler that
    is not paused answers at once.
    """


class SchedulingResumed(Message, frozen=True, kw_only=True):
    """A scheduler plans again."""


class ResumeScheduling(Request[SchedulingResumed], frozen=True, kw_only=True):
    """Ask a scheduler to plan steps again."""


# To a block manager.


class PrefixCacheReset(Message, frozen=True, kw_only=True):
    """No cached prefix can be found any more. `blocks` of the device held one, and `blocks_below` in lower tiers."""

    blocks: int
    blocks_below: int = 0


class ResetPrefixCache(Request[PrefixCacheReset], frozen=True, kw_only=True):
    """Ask a block manager to forget which prefixes its blocks hold. Running requests keep their blocks.

    Attributes:
        below: in the host's memory and on its disk, too.
    """

    below: bool = True


# An executor that sleeps is replaced by an actor of another class, which computes nothing and says so. The options of
# that actor hold the executor's class and options, with which it wakes.

ASLEEP = "asleep"
"""The name of an executor's fact: the level of its sleep; missing while it computes."""

SleepLevel = Literal[1, 2]
"""What a sleeping model keeps. Its KV cache is freed in any case.

1: its weights, in the host's memory.
2: nothing.
"""

Part = Literal["weights", "kv_cache"]
"""A part of a sleeping model that can be restored by itself."""


class SleepingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an executor that sleeps, as far as the lifecycle actor writes them.

    Attributes:
        awake_class: `module:Class` of the executor when it wakes.
        awake_options: the options of that executor, a JSON object.
        level: see `SleepLevel`.
        woken: the parts that were restored; with both parts it would not sleep any more.
        device: the device that it computes on.
        known_max_model_len: the longest request, in tokens, that its memory held before it slept.
    """

    awake_class: str
    awake_options: str
    level: SleepLevel
    woken: tuple[Part, ...] = ()
    device: str = "cpu"
    known_max_model_len: int | None = None


SLEEPING_CLASS = "pageant.actors.executor.sleeping:SleepingExecutor"


# To an executor, before it is to compute with other weights. It never does: another begins with them in its place.

WEIGHT_VERSION = "weight_version"
"""The name of an executor's fact: what its weights are called."""


class WeightsPrepared(Message, frozen=True, kw_only=True):
    """`loaded`: the weights are in memory, beside those that are computed with; else `why` they are not."""

    loaded: bool
    why: str = ""


class PrepareWeights(Request[WeightsPrepared], frozen=True, kw_only=True):
    """Ask an executor to load other weights while it computes, for the executor that begins in its place, if there is
    memory for both. They are dropped if that one is to compute with others.

    Attributes:
        folder: the checkpoint's, which has the shape of the present one.
        version: what the weights are called.
    """

    folder: str
    version: str


class PreparedDropped(Message, frozen=True, kw_only=True):
    """Nothing is prepared."""


class DropPrepared(Request[PreparedDropped], frozen=True, kw_only=True):
    """Ask an executor to forget what it prepared."""


# To the lifecycle actor.


class ModelState(Message, frozen=True, kw_only=True):
    """State of a served model.

    Attributes:
        paused: the mode in which it was paused; None while it is not.
        sleep_level: 0 while it is awake.
        woken: the parts of a sleeping model that were restored.
        weight_version: what its weights are called.
        folder: the checkpoint's that they are from.
        adapters: the keys of its adapters, by their names.
        adapter_owners: the tenants that own adapters, by the adapters' names.
    """

    replica: str
    paused: PauseMode | None = None
    sleep_level: int = 0
    woken: tuple[Part, ...] = ()
    weight_version: str = ""
    folder: str = ""
    adapters: dict[str, str] = msgspec.field(default_factory=dict)
    adapter_owners: dict[str, str] = msgspec.field(default_factory=dict)


class GetModelState(Request[ModelState], frozen=True, kw_only=True):
    """Ask for the state of a model."""

    replica: str = ""


class PauseModel(Request[ModelState], frozen=True, kw_only=True):
    """Pause a model. Answered when none of its steps is computed any more.

    Attributes:
        mode: the fate of its open requests.
        clear_cache: forget its cached prefixes, too. Requests that are kept recompute theirs.
    """

    replica: str = ""
    mode: PauseMode = "abort"
    clear_cache: bool = True


class ResumeModel(Request[ModelState], frozen=True, kw_only=True):
    """Resume a paused model. A model that is not paused stays as it is."""

    replica: str = ""


class ResetModelCache(Request[PrefixCacheReset], frozen=True, kw_only=True):
    """Forget the cached prefixes of a model.

    Attributes:
        below: in the host's memory and on its disk, too.
        reset_running: running requests free their memory first, and are recomputed.
    """

    replica: str = ""
    below: bool = True
    reset_running: bool = False


class AddAdapter(Request[ModelState], frozen=True, kw_only=True):
    """Load an adapter while its model is served.

    Attributes:
        name: its name for clients; no model and no other adapter may have it.
        folder: see `AdapterCheckpoint`; on the executor's host.
        in_place: it may take the name of another. Requests that have begun with that one end with it.
        owner: the tenant who asks; "" is an operator.
    """

    replica: str = ""
    name: str
    folder: str
    in_place: bool = False
    owner: str = ""


class RemoveAdapter(Request[ModelState], frozen=True, kw_only=True):
    """Unload an adapter. Requests that use it end with an error that names it.

    Attributes:
        owner: the tenant who asks, and who must own the adapter; "" is an operator.
    """

    replica: str = ""
    name: str
    owner: str = ""


class SleepModel(Request[ModelState], frozen=True, kw_only=True):
    """Free a model's memory until it is woken. Requests that come meanwhile wait.

    Attributes:
        level: see `SleepLevel`; with 0 it only pauses.
        mode: the fate of its open requests. Kept ones go on when it wakes, with the same tokens.
    """

    replica: str = ""
    level: Literal[0, 1, 2] = 1
    mode: PauseMode = "abort"


class WakeModel(Request[ModelState], frozen=True, kw_only=True):
    """Wake a sleeping model.

    Attributes:
        parts: restore only these; the model computes when it has both. `scheduling` ends a pause. None is
            everything.
    """

    replica: str = ""
    parts: tuple[Part | Literal["scheduling"], ...] | None = None


class LoadModel(Request[ModelState], frozen=True, kw_only=True):
    """Load a sleeping model that requests wait for. Where too many are loaded already, another gives way first."""

    replica: str = ""


class UpdateWeights(Request[ModelState], frozen=True, kw_only=True):
    """Go on with the weights of another checkpoint, which has the same shape.

    Attributes:
        folder: the checkpoint's; on the executor's host and on the root's.
        version: what they are to be called; None takes the folder's name.
        mode: what becomes of open requests. Kept ones compute all their tokens again and go on with the new weights.
        beside: load them beside the present ones before anything pauses, if there is memory for both.
    """

    replica: str = ""
    folder: str
    version: str | None = None
    mode: PauseMode = "keep"
    beside: bool = True


# To frontends.


class ModelLearned(Message, frozen=True, kw_only=True):
    """The frontend judges requests by the new state from now on."""


class LearnModel(Request[ModelLearned], frozen=True, kw_only=True):
    """Tell a frontend the new state of a model."""

    state: ModelState
