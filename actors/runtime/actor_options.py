"""Options of an actor: settings and its own entry merged, checked against its class, and encoded."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from pageant.actors.runtime.address import model_of, replica_of
from pageant.actors.runtime.node_plans import entry_of
from pageant.actors.runtime.topology import choices
from pageant.actors.runtime.topology_specs import ActorSpec
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError


def encode_options(cls: Any, name: str, given: Mapping[str, Any], settings: Mapping[str, Any]) -> bytes:
    """Return an actor's options as JSON: the settings that its class knows, overridden by its own entry.

    Raises:
        TopologyError: an option is unknown or its value is invalid. Names the key that the user wrote.
    """
    fields = cls.Options.__struct_fields__
    for option in given:
        if option not in fields:
            raise TopologyError(
                f"{entry_of(name)}.options.{option}", f"no such option; {expected(option, fields)}"
            )
    merged = {key: value for key, value in settings.items() if key in fields} | dict(given)
    try:
        encoded = msgspec.json.encode(msgspec.convert(merged, cls.Options))
        # The node decodes them, too; JSON has no NaN, for one.
        msgspec.json.decode(encoded, type=cls.Options)
        return encoded
    except (ValueError, TypeError, RecursionError) as error:  # ValidationError is a ValueError
        if isinstance(error.__cause__, TopologyError):  # an option that names something checked it itself
            raise error.__cause__ from None
        option, message = _option_and_message(cls, error, merged)
    place = f"{entry_of(name)}.options{option}"
    key = _key(option)
    if key in settings and key not in given:
        model = model_of(replica_of(name))
        place = f"models.{model}{key}".replace("/", ".") if model else key
    raise TopologyError(place, message)


def _option_and_message(cls: Any, error: Exception, merged: Mapping[str, Any]) -> tuple[str, str]:
    """Return the path of the option that an error is about, `.NAME` and more, and what is wrong with it."""
    message, _, path = str(error).partition(" - at ")
    option = path.strip("`").removeprefix("$")
    message += choices(cls.Options, _key(option), merged)
    return (option, message) if option else _blamed(message, cls.Options.__struct_fields__)


def _key(option: str) -> str:
    return option.lstrip(".").partition(".")[0].partition("[")[0]


def _blamed(message: str, fields: Collection[str]) -> tuple[str, str]:
    """Split the message of an option's own check, `NAME is VALUE; ...`, into the option's path and the rest."""
    match = re.match(r"(\w+)(?: is |: )(.*)", message, re.DOTALL)
    if match is None or match[1] not in fields:
        return "", message
    return f".{match[1]}", match[2] if match[2].startswith("found ") else f"found {match[2]}"


def with_device(cls: Any, name: str, spec: ActorSpec, device: str | None) -> dict[str, Any]:
    """Return an actor's own options, with the device of its node, if the node has one and the actor takes one."""
    if device is None or "device" not in cls.Options.__struct_fields__:
        return spec.options
    own = spec.options.get("device", device)
    if own != device:
        place = f"{entry_of(name)}.options.device"
        raise TopologyError(place, f"found {own!r}, but its node has {device!r}")
    return {**spec.options, "device": device}
