"""A topology with the default cast filled in, and the models that it serves: checked before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from pageant.actors.client.cast import DEFAULT_CAST, model_settings, served_models, with_found
from pageant.actors.client.sleeping import check_loaded, put_to_sleep, refuse_sleep, starts_asleep
from pageant.actors.client.speculating import settle_speculation
from pageant.actors.runtime.resolving import Resolved, resolve
from pageant.actors.runtime.topology import Topology
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError
from pageant.protocol.fronting import ServedModel

__all__ = ["ResolvedModels", "choose_model", "resolve_models", "resolve_topology"]


class ResolvedModels(NamedTuple):
    """A resolved topology, with the models that it serves."""

    resolved: Resolved
    settings: dict[str, dict[str, Any]]
    """What each model's folder says of it, by replica."""
    served: tuple[ServedModel, ...]


def resolve_topology(topology: Topology) -> Resolved:
    """Return a topology with the default cast filled in, checked as far as can be without starting it.

    Raises:
        TopologyError, CheckpointError: what is wrong, and where.
    """
    return resolve_models(topology).resolved


def resolve_models(topology: Topology) -> ResolvedModels:
    """Resolve a topology as `resolve_topology` does; return its models, too."""
    topology = settle_speculation(topology)
    of_models: dict[str, dict[str, Any]] = {}
    for name, part in topology.models.items():
        try:
            of_models[name] = model_settings(part)
        except TopologyError as error:
            raise error.within(f"models.{name}") from None
    first = next(iter(of_models.values())) if of_models else model_settings(topology)
    served = served_models(topology, first, of_models)
    shared = {"served": msgspec.to_builtins(served)}
    if of_models:
        models = {name: with_found(part, of_models[name]) for name, part in topology.models.items()}
        topology = msgspec.structs.replace(topology, models=models)
    else:
        topology = with_found(topology, first)
    resolved = resolve(topology, DEFAULT_CAST, shared if of_models else first | shared, of_models)
    parts = {f"{name}/": part for name, part in topology.models.items()} or {"": topology}
    refuse_sleep(topology, parts)
    asleep = [prefix for prefix, part in parts.items() if starts_asleep(part)]
    check_loaded(topology, len(parts) - len(asleep))
    resolved = replace(resolved, actors=tuple(put_to_sleep(plan, asleep) for plan in resolved.actors))
    settings = {f"{name}/": one for name, one in of_models.items()} or {"": first}
    return ResolvedModels(resolved, settings, served)


def choose_model(served: Sequence[ServedModel], model: str | None) -> ServedModel:
    """Return the model of that name, alias or key; None is the first. Raises TopologyError."""
    if model is None:
        return served[0]
    names = {name: one for one in served for name in (*one.aliases, one.replica.rstrip("/"), one.name)}
    if model not in names:
        raise TopologyError("model", f"found {model!r}; {expected(model, [one.name for one in served])}")
    return names[model]
