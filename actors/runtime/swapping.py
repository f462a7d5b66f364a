"""Plans of successors: a swap's class and options, checked before the actor's present life is touched."""

from __future__ import annotations

import json
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


def successor(plan: ActorPlan, cls: str, options: str, folder: str = "") -> ActorPlan:
    """Return a plan with another class, or with other options, or with both.

    Args:
        cls: `module:Class`; "" keeps the class.
        options: a JSON object, laid over the present options as far as the class has them.

    Raises:
        TopologyError: there is no such class, it does not take the role, or it does not take an option.
    """
    place = f"actors.{plan.name}"
    if role_of(plan.name) in KEPT:
        raise TopologyError(place, "it holds its users' requests, and is not swapped while it serves")
    loaded = load_actor_class(cls or plan.cls, f"{place}.class", folder or plan.folder)
    role = ROLES.get(role_of(plan.name))
    # Members that follow the first of a group take no role, and keep their class.
    if cls not in ("", plan.cls) and role is not None and loaded.role is not role:
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
