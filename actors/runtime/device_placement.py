"""Placement of actors that want a device, on nodes that join: decided when a node comes, with the devices it has."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from pageant.actors.runtime.devices import CPU, choose
from pageant.actors.runtime.lives import ActorLife, NodeLife

__all__ = ["listed", "place_by_device", "unplaceable"]


def place_by_device(actors: Collection[ActorLife], nodes: Collection[NodeLife]) -> list[ActorLife]:
    """Place actors that want a device, and have no node, on free devices. Return the ones that were placed."""
    placed = []
    for actor in actors:
        wanted = actor.plan.device
        if wanted is None or actor.plan.node or actor.final:
            continue
        for node in nodes:
            if not (node.takes_actors and node.plan.joins):
                continue
            taken = {
                one.device for one in actors if one.plan.node == node.plan.name and one.device is not None
            }
            device = choose(wanted, node.devices, taken)
            if device is not None and (device != CPU or not taken):
                _place_on(actor, node.plan.name, device)
                placed.append(actor)
                break
    return placed


def _place_on(actor: ActorLife, node: str, device: str) -> None:
    options = json.loads(actor.plan.options)
    if "device" in options:
        options["device"] = device
    actor.device = device
    actor.plan = replace(actor.plan, node=node, options=json.dumps(options).encode())


def unplaceable(
    actors: Collection[ActorLife], nodes: Collection[NodeLife]
) -> Iterator[tuple[ActorLife, str]]:
    """Yield actors that have no node though every node is there, each with the reason."""
    if not all(node.up for node in nodes):
        return
    there = "; ".join(f"{node.plan.name} has {listed(node.devices)}" for node in nodes if node.devices)
    for actor in actors:
        if actor.plan.device is not None and not actor.plan.node and not (actor.proven or actor.final):
            yield actor, f"no node has {actor.plan.device} free for it: {there}"


def listed(devices: Sequence[str]) -> str:
    """Return the names of devices, for people."""
    return ", ".join(devices) or "none that it knows of"
