"""Replicas of a seed's engine: how many, where their actors live, and the plans of further ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random

import msgspec

from pageant.actors.runtime.address import role_of
from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.actors.runtime.replicating import Indexes
from pageant.actors.runtime.resolving import Resolved
from pageant.protocol.roles import OWNED_ROLES

REPLICAS_MAX = 3  # at a time
SEEDS_WITH_REPLICAS = 5  # one seed of so many has replicas
LIFECYCLE, ROUTER = "lifecycle", "router"
CLASSES = {
    LIFECYCLE: "pageant.actors.lifecycle.actor:Lifecycle",
    ROUTER: "pageant.actors.router.actor:Router",
}
KINDS_SHARE = 0.7
"""Share of the seeds with several replicas and a store in which one replica computes prompts for the others."""
ROUTING = ("prefix", "prefix", "least", "round_robin", "tenant")


def draw_count(seed: int, *, always: bool) -> int:
    """Return how many replicas a seed's engine begins with; 0 where its actors are no replica's.

    Args:
        always: 0 is not to be drawn.
    """
    random = Random(f"{seed} replicas")
    has_some = random.randrange(SEEDS_WITH_REPLICAS) == 0
    count = random.choice((1, 2, 2, 3))
    return count if has_some or always else 0


def draw_prefills(seed: int, count: int) -> int:
    """Return how many of `count` replicas compute prompts for the others; 0 where all do everything."""
    return int(count > 1 and Random(f"{seed} kinds").random() < KINDS_SHARE)


def with_replicas(
    engine: Resolved,
    root: str,
    seed: int,
    count: int,
    plan: Callable[[str, str], ActorPlan],
    prefills: int = 0,
    store_of: Callable[[int], str] = lambda number: "",
) -> Resolved:
    """Return an engine with `count` replicas of the actors that replicas own, and with what serves all of them.

    Args:
        engine: one without replicas.
        plan: makes the plan of an actor of that name on a node.
        prefills: the first so many replicas are for prompts, and all others for outputs; 0 is all for both.
        store_of: returns the name of the store of a replica's host, which its block manager has as an option.
    """
    owned = [one for one in engine.actors if role_of(one.name) in OWNED_ROLES]
    shared = [one for one in engine.actors if role_of(one.name) not in OWNED_ROLES]
    random = Random(f"{seed} router")
    shared = [*shared, plan(LIFECYCLE, root), plan(ROUTER, random.choice((root, ROUTER, ROUTER)))]

    def grow(present: Indexes) -> Resolved:
        replicas = [
            [_placed(one, number, prefills, store_of) for one in _replica(owned, number, root, seed)]
            for number in present[""]
        ]
        actors = (*shared, *(one for replica in replicas for one in replica))
        # Frontends come last, as without replicas.
        actors = tuple(sorted(actors, key=lambda one: role_of(one.name) == "frontend"))
        return replace(engine, actors=actors, nodes=nodes_of(actors, root), grow=grow, replicas=present)

    return grow({"": tuple(range(count))})


def _placed(one: ActorPlan, number: int, prefills: int, store_of: Callable[[int], str]) -> ActorPlan:
    """Return the plan of a replica's actor, with what follows from which replica it is: its store, and its kind."""
    options = msgspec.json.decode(one.options)
    if options.get("store"):
        options["store"] = store_of(number)
    if prefills and role_of(one.name) == "scheduler":
        options["replica_role"] = "prefill" if number < prefills else "decode"
    return replace(one, options=msgspec.json.encode(options))


def _replica(owned: Iterable[ActorPlan], number: int, root: str, seed: int) -> list[ActorPlan]:
    """Return the actors of a replica. Every time that it is added they live in the same places."""
    random, prefix = Random(f"{seed} replica {number}"), f"replica-{number}/"
    return [
        replace(
            one,
            name=prefix + one.name,
            bound=one.bound and prefix + one.bound,
            node=_home(random, one.name.replace("/", "-"), number, root),
        )
        for one in owned
    ]


def _home(random: Random, actor: str, number: int, root: str) -> str:
    """Return an actor's node: mostly its replica's own, sometimes the root."""
    return random.choice((f"{actor}-of-{number}", f"shared-{number}", f"shared-{number}", root))


def nodes_of(actors: Iterable[ActorPlan], root: str) -> tuple[NodePlan, ...]:
    """Return the root and the processes of all other nodes of these actors."""
    others = dict.fromkeys(actor.node for actor in actors if actor.node != root)
    return (NodePlan(root), *(NodePlan(name, process=True) for name in others))


def all_homes(engine: Resolved) -> dict[str, str]:
    """Return the node of each actor, also of replicas that may be added while it runs."""
    grown = engine if engine.grow is None else engine.grow({"": tuple(range(REPLICAS_MAX))})
    return {plan.name: plan.node for plan in grown.actors}


def prefixes_in(homes: Mapping[str, str]) -> list[str]:
    """Return the prefixes of the engines among actors: `replica-0/` and so on, or the empty one."""
    return [name.removesuffix("scheduler") for name in homes if role_of(name) == "scheduler"]
