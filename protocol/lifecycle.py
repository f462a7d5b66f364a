"""How a model is served is changed while it is served: paused and resumed, its caches emptied, adapters loaded.

    operator ──PauseModel, ResumeModel, ResetModelCache, GetModelState──▶ lifecycle
    operator ──AddAdapter, RemoveAdapter, SleepModel, WakeModel──▶ lifecycle
    lifecycle ──PauseScheduling, ResumeScheduling, GetAdapterUse──▶ scheduler
    lifecycle ──ResetPrefixCache──▶ blocks
    lifecycle ──LoadAdapter, UnloadAdapter──▶ executor
    lifecycle ──AmendActor, SwapActor, GetActor──▶ supervisor
    lifecycle ──LearnModel──▶ frontends, so that they know before the operator does

An operator is an `Engine`, an HTTP server or a command. What must outlive a death stands in the options of the actor
that it concerns, at the supervisor (`AmendActor`), before that actor is told. So its next life begins that way.

`replica` is the prefix of the names of a model's actors; "" where there is one model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from pageant.protocol.message import Message, Request

PauseMode = Literal["abort", "wait", "keep"]
"""What becomes of the requests that are open when a model pauses.

abort: they end at once, with the output that they have.
wait: they are computed to their ends.
keep: they stop where they are, and go on when the model resumes.

Requests that come later wait, whatever the mode.
"""

WAKE_TAGS = ("weights", "kv_cache", "scheduling")
"""What may be woken by itself, in this order."""

ANSWER_SECONDS = 120.0
"""How long an operator waits for an answer."""
LOAD_SECONDS = 600.0
"""How long an operator waits for an adapter to be loaded."""
DRAIN_SECONDS = 7 * 86_400.0
"""How long an operator waits for a pause, which waits for requests, however long they take."""


# To a scheduler.


PAUSED = "paused"
"""The name of a scheduler's fact: 1 while it is paused, else 0."""


class SchedulingPaused(Message, frozen=True, kw_only=True):
    """How a scheduler stands after a pause was asked for.

    Attributes:
        done: whether it is paused, and (as an answer to `AwaitRest`) at rest.
        num_open: requests that it holds.
    """

    done: bool
    num_open: int


class PauseScheduling(Request[SchedulingPaused], frozen=True, kw_only=True):
    """Ask a scheduler to plan nothing more. Answered at once; `AwaitRest` waits for the steps at hand.

    Attributes:
        mode: what becomes of its open requests.
        release: running requests give up their KV memory, and compute it again afterwards.
        if_idle: do nothing if any request is open.
    """

    mode: PauseMode = "keep"
    release: bool = False
    if_idle: bool = False


class AwaitRest(Request[SchedulingPaused], frozen=True, kw_only=True):
    """Ask a scheduler to answer when its pause is complete: nothing is computed, and with `wait` all that was open has
    ended. It answers at once when it is not paused."""


class SchedulingResumed(Message, frozen=True, kw_only=True):
    """A scheduler plans again."""


class ResumeScheduling(Request[SchedulingResumed], frozen=True, kw_only=True):
    """Ask a scheduler to go on planning."""


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


# An executor that sleeps. While it does, an actor of another class stands in its place, which computes nothing and says
# so; what it was and will be again stands in that one's options.

ASLEEP = "asleep"
"""The name of an executor's fact: the level of its sleep; missing while it computes."""

SleepLevel = Literal[1, 2]
"""What a sleeping model keeps. Its KV cache is given up in any case.

1: its weights, in the host's memory.
2: nothing.
"""

Part = Literal["weights", "kv_cache"]
"""What of a sleeping model can be brought back."""


class SleepingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an executor that sleeps, as far as the lifecycle actor writes them.

    Attributes:
        awake_class: `module:Class`, when it wakes.
        awake_options: its options then, a JSON object.
        level: see `SleepLevel`.
        woken: what was brought back; with both parts it would not sleep any more.
        device: where it computes.
        known_max_model_len: how long requests could be when it slept.
    """

    awake_class: str
    awake_options: str
    level: SleepLevel
    woken: tuple[Part, ...] = ()
    device: str = "cpu"
    known_max_model_len: int | None = None


SLEEPING_CLASS = "pageant.actors.executor.sleeping:SleepingExecutor"


# To an executor. Adapters have keys there: an adapter that is loaded under a name that another had has another key, so
# that no request is computed with both, and no prefix of the one is found by the other.

ADAPTERS = "adapters"
"""The name of an executor's fact: the keys of the adapters that requests may have, by their names."""
ADAPTER_OWNERS = "adapter_owners"
"""The name of another: who made those that belong to somebody, by the adapters' names."""


class AddedAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An adapter that was loaded while its model was served.

    Attributes:
        name: what it is called outside.
        folder: see `AdapterCheckpoint`; on the executor's host.
        owner: the tenant that made it; "" is the operator.
        retired: another took its name: only requests that have begun with it are computed with it.
    """

    name: str
    folder: str
    owner: str = ""
    retired: bool = False


def offered_adapters(configured: Iterable[str], added: Mapping[str, AddedAdapter]) -> dict[str, str]:
    """Return the keys of the adapters that new requests may have, by their names.

    Args:
        configured: names of the topology's own, which are their keys too.
        added: those that were loaded since, by key.
    """
    later = {one.name: key for key, one in added.items() if not one.retired}
    return {name: name for name in configured} | later


def adapter_owners(added: Mapping[str, AddedAdapter]) -> dict[str, str]:
    """Return who made the adapters that belong to somebody, by the adapters' names."""
    return {one.name: one.owner for one in added.values() if one.owner and not one.retired}


class AdapterLoaded(Message, frozen=True, kw_only=True):
    """Requests may be computed with it."""


class LoadAdapter(Request[AdapterLoaded], frozen=True, kw_only=True):
    """Ask an executor to load an adapter under a key; one that it has stays as it is."""

    key: str
    adapter: AddedAdapter


class AdapterUnloaded(Message, frozen=True, kw_only=True):
    """No request is computed with it any more."""


class UnloadAdapter(Request[AdapterUnloaded], frozen=True, kw_only=True):
    """Ask an executor to forget an adapter. Requests that have it end with an error.

    Attributes:
        retire: only take away its name, and let requests that have it go on.
    """

    key: str
    retire: bool = False


class AdapterUse(Message, frozen=True, kw_only=True):
    """How many open requests have an adapter."""

    num_open: int


class GetAdapterUse(Request[AdapterUse], frozen=True, kw_only=True):
    """Ask a scheduler how many of its requests have the adapter of this key."""

    key: str


# To the lifecycle actor.


class ModelState(Message, frozen=True, kw_only=True):
    """How a model is served.

    Attributes:
        paused: the mode in which it was paused; None while it is not.
        sleep_level: 0 while it is awake.
        woken: of a sleeping one, what was brought back.
        adapters: the keys of its adapters, by their names.
        adapter_owners: who made those that belong to somebody, by their names.
    """

    replica: str
    paused: PauseMode | None = None
    sleep_level: int = 0
    woken: tuple[Part, ...] = ()
    adapters: dict[str, str] = msgspec.field(default_factory=dict)
    adapter_owners: dict[str, str] = msgspec.field(default_factory=dict)


class GetModelState(Request[ModelState], frozen=True, kw_only=True):
    """Ask how a model is served."""

    replica: str = ""


class PauseModel(Request[ModelState], frozen=True, kw_only=True):
    """Pause a model: answered when none of its steps is computed any more.

    Attributes:
        mode: what becomes of its open requests.
        clear_cache: forget its cached prefixes, too. Requests that are kept compute theirs again.
    """

    replica: str = ""
    mode: PauseMode = "abort"
    clear_cache: bool = True


class ResumeModel(Request[ModelState], frozen=True, kw_only=True):
    """Let a paused model go on. One that is not paused stays as it is."""

    replica: str = ""


class ResetModelCache(Request[PrefixCacheReset], frozen=True, kw_only=True):
    """Forget the cached prefixes of a model.

    Attributes:
        below: in the host's memory and on its disk, too.
        reset_running: running requests give up their memory first, and compute it again.
    """

    replica: str = ""
    below: bool = True
    reset_running: bool = False


class AddAdapter(Request[ModelState], frozen=True, kw_only=True):
    """Load an adapter while its model is served.

    Attributes:
        name: what it is to be called; no model and no other adapter may be called so.
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
    """Forget an adapter. Requests that have it end with an error that names it.

    Attributes:
        owner: the tenant who asks, of whose adapters alone it may be; "" is an operator.
    """

    replica: str = ""
    name: str
    owner: str = ""


class SleepModel(Request[ModelState], frozen=True, kw_only=True):
    """Let a model give back its memory until it is woken. Requests that come meanwhile wait.

    Attributes:
        level: see `SleepLevel`; with 0 it only pauses.
        mode: what becomes of its open requests. Kept ones go on when it wakes, with the same tokens.
    """

    replica: str = ""
    level: Literal[0, 1, 2] = 1
    mode: PauseMode = "abort"


class WakeModel(Request[ModelState], frozen=True, kw_only=True):
    """Bring a sleeping model back.

    Attributes:
        parts: only so much of it; it computes when it has both. `scheduling` ends a pause. None is everything.
    """

    replica: str = ""
    parts: tuple[Part | Literal["scheduling"], ...] | None = None


# To frontends.


class ModelLearned(Message, frozen=True, kw_only=True):
    """From now on requests are judged by that."""


class LearnModel(Request[ModelLearned], frozen=True, kw_only=True):
    """Tell a frontend how a model is served from now on."""

    state: ModelState
