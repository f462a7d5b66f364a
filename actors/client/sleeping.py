"""Models that are asleep from the start: a server is up at once, and loads them when somebody wants them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from pageant.actors.runtime.address import replica_of, role_of
from pageant.actors.runtime.plans import ActorPlan
from pageant.actors.runtime.replicating import is_replicated
from pageant.actors.runtime.topology import Topology
from pageant.protocol.errors import TopologyError
from pageant.protocol.lifecycle import SLEEPING_CLASS, SleepingOptions


def starts_asleep(topology: Topology) -> bool:
    """Return whether a model's weights are to be loaded only when somebody wakes it: as `start_asleep` says, or else
    where models are loaded on demand.

    Raises:
        TopologyError: the setting is no boolean.
    """
    wanted = topology.settings.get("start_asleep")
    if wanted is None:
        return topology.settings.get("max_loaded_models") is not None
    if not isinstance(wanted, bool):
        raise TopologyError("start_asleep", f"found {wanted!r:.100}; expected true or false")
    return wanted


def check_loaded(topology: Topology, num_awake: int) -> None:
    """Refuse a topology in which more models start awake than may be loaded.

    Raises:
        TopologyError: that is so.
    """
    most = topology.settings.get("max_loaded_models")
    if isinstance(most, int) and num_awake > most > 0:
        raise TopologyError(
            "max_loaded_models", f"found {most}, and {num_awake} models start awake; see start_asleep"
        )


def put_to_sleep(plan: ActorPlan, replicas: Collection[str]) -> ActorPlan:
    """Return an actor's plan; of an executor of one of these replicas, that of one which sleeps in its place."""
    if role_of(plan.name) != "executor" or replica_of(plan.name) not in replicas:
        return plan
    awake: dict[str, Any] = msgspec.json.decode(plan.options)
    options = SleepingOptions(
        awake_class=plan.cls,
        awake_options=plan.options.decode(),
        level=2,
        device=awake.get("device", "cpu"),
    )
    return replace(plan, cls=SLEEPING_CLASS, options=msgspec.json.encode(options))


def refuse_sleep(topology: Topology, parts: Mapping[str, Topology]) -> None:
    """Refuse models with replicas that would sleep.

    Args:
        parts: the topology of each model, by its prefix.

    Raises:
        TopologyError: names the setting.
    """
    for prefix, part in parts.items():
        if not is_replicated(topology, part):
            continue
        for name, value in (
            ("start_asleep", starts_asleep(part)),
            ("max_loaded_models", topology.settings.get("max_loaded_models")),
        ):
            if value:
                place = f"models.{prefix}{name}".replace("/", ".") if prefix else name
                raise TopologyError(place, f"found {value}, and a model with replicas does not sleep")
