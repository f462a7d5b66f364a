"""Plans of successors: a swap's class and options, checked before the actor's present life is touched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from pageant.actors.runtime.address import role_of
from pageant.actors.runtime.classes import load_actor_class
from pageant.actors.runtime.plans import ActorPlan
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError
from pageant.protocol.roles import ROLES

# Roles that are not swapped: they hold their users' requests and connections.
KEPT = ("frontend", "http")


def successor(
    plan: ActorPlan, cls: str, options: str, folder: str = "", *, follows: bool = False
) -> ActorPlan:
    """Return a plan with another class, or with other options, or with both.

    Args:
        cls: `module:Class`; "" keeps the class.
        options: a JSON object, laid over the present options as far as the class has them.
        follows: it follows the first of a group, and its class takes no role.

    Raises:
        TopologyError: there is no such class, it does not take the role, or it does not take an option.
    """
    place = f"actors.{plan.name}"
    if role_of(plan.name) in KEPT:
        raise TopologyError(place, "it holds its users' requests, and is not swapped while it serves")
    loaded = load_actor_class(cls or plan.cls, f"{place}.class", folder or plan.folder)
    role = ROLES.get(role_of(plan.name))
    if not follows and cls not in ("", plan.cls) and role is not None and loaded.role is not role:
        raise TopologyError(f"{place}.class", f"{loaded.__qualname__} does not take the role of {role.name}")
    fields = loaded.Options.__struct_fields__
    given = _object(options, place)
    for name in given:
        if name not in fields:
            raise TopologyError(f"{place}.options.{name}", f"no such option; {expected(name, fields)}")
    present = {name: value for name, value in json.loads(plan.options).items() if name in fields}
    try:
        encoded = msgspec.json.encode(msgspec.convert(present | given, loaded.Options))
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise TopologyError(f"{place}.options", str(error)) from None
    return replace(plan, cls=cls or plan.cls, options=encoded, folder=folder or plan.folder)


def successors(plans: Sequence[ActorPlan], cls: str, options: str, folder: str = "") -> list[ActorPlan]:
    """Return the plans of the successors of a group, or of one actor.

    Args:
        plans: all members, the first one first.
        cls, options: as for `successor`. They are the first member's; the others get the class that follows it, and
            the same options, but keep the device that each has.

    Raises:
        TopologyError: see `successor`; or the group would have another size, or a member another device.
    """
    first, *others = plans
    place = f"actors.{first.name}.options"
    given = _object(options, place)
    device = json.loads(first.options).get("device")
    if others and given.get("device", device) != device:
        raise TopologyError(
            f"{place}.device",
            f"found {given['device']!r}; expected {device!r}: members of a group keep the devices that they have",
        )
    led = successor(first, cls, options, folder)
    loaded = load_actor_class(led.cls, f"actors.{first.name}.class", led.folder)
    made = msgspec.json.decode(led.options, type=loaded.Options)
    if made.num_members != len(plans):
        raise TopologyError(
            place,
            f"found {made.members_because or 'no group'}, which makes {made.num_members}; expected {len(plans)}, as "
            "there are: a swap changes no group's size",
        )
    if others and not loaded.follower:
        raise TopologyError(f"actors.{first.name}.class", f"{loaded.__qualname__} leads no group")
    given.pop("device", None)
    rest, follower = json.dumps(given), loaded.follower if cls else ""
    return [led, *(successor(plan, follower, rest, folder, follows=True) for plan in others)]


def _object(options: str, place: str) -> dict[str, Any]:
    try:
        given = json.loads(options or "{}")
    except ValueError as error:
        raise TopologyError(
            f"{place}.options", f"found {options!r}; expected a JSON object: {error}"
        ) from None
    if not isinstance(given, dict):
        raise TopologyError(f"{place}.options", f"found {options!r}; expected a JSON object")
    return given
