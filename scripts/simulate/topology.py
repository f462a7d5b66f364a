"""Engine that a seed simulates: its placement, sizes and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec

import pageant
from pageant.actors.client.cast import DEFAULT_CAST
from pageant.actors.executor.simulated import SimulatedExecutor
from pageant.actors.executor.simulated_model import NUM_TOKENS
from pageant.actors.runtime.address import role_of
from pageant.actors.runtime.classes import load_actor_class
from pageant.actors.runtime.lease import LeaseTerms
from pageant.actors.runtime.plans import ActorPlan
from pageant.actors.runtime.resolving import Resolved
from pageant.protocol.errors import TopologyError
from pageant.protocol.fronting import ServedModel
from pageant.scripts.simulate.replicas import (
    CLASSES,
    ROUTING,
    all_homes,
    draw_count,
    draw_prefills,
    nodes_of,
    with_replicas,
)
from pageant.scripts.simulate.stores import STORE, draw_stores

ROOT = "front"
MODEL = Path(pageant.__file__).parent / "models" / "demo"  # for its tokenizer
MAX_MODEL_LEN = 128
VOCAB_SIZE = 4096
END_TOKENS = (2,)
STEP_PATIENCE = 0.5  # seconds of a step, that nobody waits long for one that hangs
SIMULATED_EXECUTOR = "pageant.actors.executor.simulated:SimulatedExecutor"
WATCHED_FRONTEND = "pageant.scripts.simulate.frontends:WatchedFrontend"
SIMULATED_STORE = "pageant.scripts.simulate.stores:SimulatedStore"
SERVED = ServedModel(
    name="simulated",
    replica="",
    folder=str(MODEL),
    vocab_size=VOCAB_SIZE,
    max_model_len=MAX_MODEL_LEN,
    max_logprobs=20,
    generation_config="none",
)


HANDOVER = ("auto", "always", "always", "always")
WINDOWS: tuple[tuple[int | None, ...], ...] = (  # of groups of layers
    *[(None,)] * 7,
    *((24,), (None, 20), (None, 12, 12), (40, 9)),
)


@dataclass(frozen=True)
class StandIn:
    """Stand-in for a model: it says `alphabet` different tokens (few, where an n-gram is to guess them), and has
    groups of layers with these windows."""

    alphabet: int
    windows: tuple[int | None, ...]


@dataclass(frozen=True)
class SeededEngine:
    """A small engine whose settings, classes and placement a seed has chosen."""

    topology: Resolved
    model: StandIn

    @property
    def homes(self) -> dict[str, str]:
        """Return each actor's node, also of replicas that may be added."""
        return all_homes(self.topology)


def draw_engine(
    random: Random, seed: int, classes: Mapping[str, str] | None = None, *, replicas: bool = False
) -> SeededEngine:
    """Draw an engine with two or three frontends, small enough that it runs out of rows, blocks and queue.

    Args:
        random: draws what is older than the draws by `seed` and a name; each new draw leaves those as they are.
        classes: actors of the user's own, by the name that they take the place of.
        replicas: the engine is to have replicas, whether the seed says so or not.

    Raises:
        TopologyError: `classes` names an actor that no engine has.
    """
    own = classes or {}
    count = draw_count(seed, always=replicas)
    settings = _draw_settings(random, seed, is_replicated=count > 0)
    stores = draw_stores(seed, count)
    settings |= stores.options
    cast = {**DEFAULT_CAST.classes, "executor": SIMULATED_EXECUTOR}
    _draw_speculation(random, settings, cast)
    # Drafts of the device's own are made by what it sees in one group, without a window.
    on_device = "speculation" in settings and "drafter" not in cast
    if not on_device:
        settings["windows"] = Random(f"{seed} windows").choice(WINDOWS)
        settings["num_blocks"] *= len(settings["windows"])
    for name in own.keys() - cast.keys() - DEFAULT_CAST.optional.keys():
        known = ", ".join(sorted(cast.keys() | DEFAULT_CAST.optional.keys()))
        raise TopologyError(
            "actor", f"there is no actor {name!r} to take the place of; expected one of {known}"
        )
    # Replicas of groups that draft on the device would show nothing that replicas and such groups do not.
    may_be_group = settings["device"] == "cpu" and "executor" not in own
    if may_be_group and not (on_device and count):
        settings["tensor_parallel"] = Random(f"{seed} group").choice((1, 1, 2, 3, 4))
        settings["pipeline_parallel"] = Random(f"{seed} stages").choice((1, 1, 2, 3))
    cast |= {name: cls for name, cls in own.items() if name != STORE}
    if count and "frontend" not in own:
        cast["frontend"] = WATCHED_FRONTEND
    topology = _place(random, seed, cast, settings)
    others = {**CLASSES, STORE: SIMULATED_STORE, **own}

    def plan(name: str, node: str) -> ActorPlan:
        return _plan(name, node, others[role_of(name)], settings)

    if stores.names:
        homes = {
            name: _home(Random(f"{seed} home of {name}"), name.replace("/", "-")) for name in stores.names
        }
        actors = (*(plan(name, home) for name, home in homes.items()), *topology.actors)
        topology = replace(topology, actors=actors, nodes=nodes_of(actors, ROOT))
    if count:
        prefills = draw_prefills(seed, count) if stores.names else 0
        topology = with_replicas(topology, ROOT, seed, count, plan, prefills, stores.of_replica)
    return SeededEngine(topology, StandIn(settings["alphabet"], settings.get("windows", (None,))))


def _draw_settings(random: Random, seed: int, *, is_replicated: bool) -> dict[str, Any]:
    """Draw the options of all actors; each takes those that it knows."""
    block_size = random.choice((4, 8, 16))
    blocks_least = MAX_MODEL_LEN // block_size
    return {
        "model": str(MODEL),
        "max_model_len": MAX_MODEL_LEN,
        "vocab_size": VOCAB_SIZE,
        "block_size": block_size,
        "num_blocks": blocks_least + random.choice((0, 0, 0, 1, 2, blocks_least)),
        "max_num_seqs": random.randint(4, 12),
        "max_num_batched_tokens": random.choice((16, 32, 64, 256)),
        "async_scheduling": random.random() < 0.8,
        "short_step_seconds": Random(f"{seed} short steps").choice((0.0, 0.005, 1.0)),
        "policy": random.choice(("fcfs", "fcfs", "priority", "shortest", "fair", "deadline")),
        "enable_prefix_caching": True,
        "host_memory": random.choice((0, 0, 4096)),
        "eos_token_ids": END_TOKENS,
        "step_patience": STEP_PATIENCE,
        "alphabet": NUM_TOKENS,
        "isolate": False,
        "loop_seconds_max": 0.0,  # nothing takes time here, and masks are to be late
        "served": (msgspec.structs.replace(SERVED, is_replicated=is_replicated),),
        "routing": Random(f"{seed} routing").choice(ROUTING),
        "handover": Random(f"{seed} handover").choice(HANDOVER),
        "device": random.choice(("cpu", "cuda:0")),
    }


def _draw_speculation(random: Random, settings: dict[str, Any], cast: dict[str, str]) -> None:
    """Draw how tokens are guessed, if at all, and add it to the settings and the cast."""
    drafts = {"tokens": random.randint(1, 4), "adaptive": random.random() < 0.5}
    match random.choice(("ngram", "ngram", "ngram", "draft", "medusa", "")):
        case "ngram":
            settings |= {"speculation": {"method": "ngram", **drafts}, "alphabet": 2}
            cast["drafter"] = DEFAULT_CAST.optional["drafter"]
        case "draft" | "medusa" as method:
            settings["speculation"] = {"method": method, "model": "simulated", **drafts}


def _place(random: Random, seed: int, cast: Mapping[str, str], settings: Mapping[str, Any]) -> Resolved:
    """Draw the node of each actor, the number of frontends, and how the nodes talk."""
    homes = {name: _home(random, name) for name in cast if name != "frontend"}
    actors = [
        _plan(f"{name}/0" if name == "executor" else name, home, cast[name], settings)
        for name, home in homes.items()
    ]
    actors = _with_followers(actors, Random(f"{seed} followers"), settings)
    for index in range(random.randint(2, 3)):
        home = ROOT if index == 0 else f"user-{index}"
        actors.append(_plan(f"frontend/{index}", home, cast["frontend"], settings))
    return Resolved(
        root=ROOT,
        nodes=nodes_of(actors, ROOT),
        actors=tuple(actors),
        wire=random.choice(("auto", "auto", "auto", "always")),
        transport="tcp",
        listen=None,
        keys=None,
        seed=seed,
        placement="each",
        # Some suspect a process that is only stopped for a while.
        lease=LeaseTerms(heartbeat=0.1, suspicion=random.choice((0.3, 0.6, 10.0))),
    )


def _home(random: Random, actor: str) -> str:
    """Mostly a process of its own, sometimes one that is shared."""
    return actor if random.random() < 0.7 else random.choice(("shared", "shared", ROOT))


def _plan(name: str, node: str, cls: str, settings: Mapping[str, Any]) -> ActorPlan:
    options = load_actor_class(cls, name).Options
    given = {key: value for key, value in settings.items() if key in options.__struct_fields__}
    return ActorPlan(name, node, cls, msgspec.json.encode(msgspec.convert(given, options)))


def _with_followers(actors: list[ActorPlan], random: Random, settings: Mapping[str, Any]) -> list[ActorPlan]:
    """Return the actors, with the other members of the executor's group, if it leads one."""
    size = settings.get("tensor_parallel", 1) * settings.get("pipeline_parallel", 1)
    if size == 1:
        return actors
    bound = [replace(one, bound="executor") if one.name == "executor/0" else one for one in actors]
    for rank in range(1, size):
        follower = _plan(
            f"executor/{rank}", _home(random, f"executor-{rank}"), SimulatedExecutor.follower, settings
        )
        bound.append(replace(follower, bound="executor"))
    return bound
