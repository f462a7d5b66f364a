"""Refusal of what is not modelled, by name: a plan that passed over it in silence would be wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pageant.actors.runtime.address import replica_of, role_of
from pageant.protocol.errors import BadRequest
from pageant.scripts.replay.load import Load

SETTINGS = ("pipeline_parallel", "speculation", "host_memory", "disk_space", "store_memory")
"""Settings whose effect is not modelled. Of a group that shares tensors or experts, the costs of steps are measured."""
OPTIONS = ("pipeline_parallel", "speculation", "host_memory", "disk_space")
"""The same among the options of recorded actors."""
NONE = (None, "", 0, "0", 1, False)
"""Values of a setting that has no effect; a pipeline of one stage is none."""
ACTORS = ("store", "drafter", "encoder")
"""Actors whose work is not modelled."""


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check that a plan with these settings of an engine is about what they describe.

    Raises:
        BadRequest: something of them is not modelled.
    """
    for name in SETTINGS:
        if settings.get(name) not in NONE:
            raise BadRequest(f"{name} is not modelled; expected a plan without it", name)
    if isinstance(settings.get("replicas"), Mapping):
        raise BadRequest(
            "replicas are of several kinds, which a plan is told otherwise; expected --prefills, how many of the "
            "replicas compute prompts for the others",
            "replicas",
        )
    for name in ACTORS:
        if name in (settings.get("actors") or {}):
            raise BadRequest(f"an actor called {name} is not modelled; expected a plan without it", "actors")


def check_recorded(load: Load) -> None:
    """Check that a plan can be made from a recording.

    Raises:
        BadRequest: steps or requests of the recording depended on something that is not modelled.
    """
    for what in _of_recording(load):
        raise BadRequest(
            f"the recording was made with {what}, which is not modelled; expected one without", "recording"
        )


def _of_recording(load: Load) -> Iterator[str]:
    for name, actor in load.header.actors.items():
        if role_of(name) in ACTORS:
            yield f"an actor called {name}"
        if replica_of(name) != load.replica:
            continue
        options = msgspec.json.decode(actor.options or "{}")
        yield from (f"{option} on {name}" for option in OPTIONS if options.get(option) not in NONE)
    if any(submit.handover for submit in load.submits):
        yield "replicas for prompts alone, from which outputs went on elsewhere"
