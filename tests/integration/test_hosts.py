"""A topology over three hosts, each a network namespace of its own: the same tokens as in one process, whoever has
no key is turned away, and a cable that is out for a while costs nothing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pageant
from pageant import SamplingParams
from pageant.actors.runtime.transport.keys import make_keys, write_keys
from pageant.scripts.chaos.hosts import NODE, Keeper, Lan, can

DEMO = Path(__file__).parents[2] / "models" / "demo"
CUT_SECONDS = 3
SECONDS = 90
HOSTS = ("front", "near", "far")
SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 64, "max_num_seqs": 8, "seed": 5}
PARAMS = {"temperature": 0.9, "seed": 11, "max_tokens": 200, "ignore_eos": True}
PROMPTS = [list(range(40, 60 + extra)) for extra in range(4)]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

# What runs on the front host: streams all prompts, says when the first tokens are there, and at the end what came.
FRONT = """
import asyncio, json, sys
import pageant
async def stream(engine, prompt, params, begun):
    async for output in engine.generate(prompt, params):
        begun.set()
    return output.outputs[0].token_ids
async def main():
    topology, prompts, params = json.loads(sys.argv[1])
    async with pageant.Engine(topology=topology) as engine:
        begun = [asyncio.Event() for _ in prompts]
        streams = [asyncio.ensure_future(stream(engine, prompt, pageant.SamplingParams(**params), event))
                   for prompt, event in zip(prompts, begun)]
        await asyncio.gather(*(event.wait() for event in begun))
        print("begun", flush=True)
        tokens = await asyncio.gather(*streams)
        restarted = [name for node in await engine.statistics()
                     for name, actor in node.actors.items() if actor.incarnation > 1]
        print(json.dumps({"tokens": tokens, "restarted": restarted}), flush=True)
asyncio.run(main())
"""


# What runs on the front host: a prompt is computed on one host, and its output on another; says what stores did.
HANDED_OVER = """
import asyncio, json, sys
import pageant
from pageant.protocol.storing import GetStoreStatistics
async def at_rest(engine, store):
    while True:
        found = await engine.ask(store, GetStoreStatistics())
        if not (found.reserved or found.pinned):
            return {"fetched": found.fetched, "unfetched": found.unfetched, "restored": found.restored,
                    "saved": found.saved, "served": found.served, "spoilt": found.spoilt}
async def main():
    topology, prompt, params = json.loads(sys.argv[1])
    async with pageant.Engine(topology=topology) as engine:
        found = await engine.complete(prompt, pageant.SamplingParams(**params))
        stores = [await at_rest(engine, f"store/{index}") for index in range(2)]
        print(json.dumps([found.outputs[0].token_ids, stores]), flush=True)
asyncio.run(main())
"""


# What runs on the front host: streams move between replicas, and write on wherever they are; says what stores did.
MOVED = """
import asyncio, json, sys
import pageant
from pageant.protocol.replicas import MoveRequests
from pageant.protocol.storing import GetStoreStatistics
PLACES = ["replica-0/", "replica-1/"]
async def stream(engine, prompt, params, counts, index):
    async for output in engine.generate(prompt, params):
        counts[index] = len(output.outputs[0].token_ids)
    return output.outputs[0].token_ids
async def stores(engine):
    return [await engine.ask(f"store/{index}", GetStoreStatistics()) for index in range(2)]
async def go_on(counts, streams):
    before = list(counts)
    while any(now <= then and not one.done() for now, then, one in zip(counts, before, streams)):
        await asyncio.sleep(0)
async def move(engine, source, target, *progress):
    asked = MoveRequests(source=source, target=target, num_tokens=100_000)
    moved = (await engine.ask("frontend", asked)).num_sequences
    await go_on(*progress)
    return moved
async def main():
    topology, prompts, params, blocks = json.loads(sys.argv[1])
    async with pageant.Engine(topology=topology) as engine:
        counts = [0] * len(prompts)
        streams = [asyncio.ensure_future(stream(engine, prompt, pageant.SamplingParams(**params), counts, index))
                   for index, prompt in enumerate(prompts)]
        await go_on(counts, streams)
        while sum([one.saved for one in await stores(engine)]) < blocks:
            await asyncio.sleep(0)
        moved = [await move(engine, *way, counts, streams) for way in (PLACES, PLACES[::-1], PLACES)]
        found = await stores(engine)
        print("moved", flush=True)
        tokens = await asyncio.gather(*streams)
        print(json.dumps({"tokens": tokens, "moved": moved, "fetched": [one.fetched for one in found],
                          "restored": [one.restored for one in found], "spoilt": [one.spoilt for one in found],
                          }), flush=True)
asyncio.run(main())
"""


pytestmark = pytest.mark.skipif(not can(), reason="network namespaces need root")


@pytest.fixture(scope="module")
def lan() -> Iterator[Lan]:
    lan = Lan(*HOSTS)
    yield lan
    lan.remove()


@pytest.fixture
def key(tmp_path) -> Path:
    write_keys(tmp_path / "pageant.key", make_keys())
    return tmp_path / "pageant.key"


async def run(lan: Lan, host: str, *command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *lan.on(host, *command),
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


async def test_three_hosts_give_the_same_tokens_and_a_cut_cable_costs_nothing(lan, key, checkpoint, tmp_path):
    topology = {
        "model": str(checkpoint.path),
        **SETTINGS,
        "listen": "tcp://10.77.0.1:5700",
        "transport": "tcp",
        "keys": str(key),
        "nodes": {  # the others cannot reach the child; it reaches them
            "front": {},
            "child": {"process": True},
            "near": {"host": "10.77.0.2"},
            "far": {"host": "10.77.0.3"},
        },
        "actors": {
            **{name: {"node": "near"} for name in ("scheduler", "blocks", "tokenizer")},
            "detokenizer": {"node": "child"},
            "executor": {"node": "far"},
        },
    }
    front = await run(lan, "front", sys.executable, "-c", FRONT, json.dumps([topology, PROMPTS, PARAMS]))
    nodes = [
        await run(lan, host, *NODE, "--join", topology["listen"], "--name", host, "--keys", str(key))
        for host in ("near", "far")
    ]
    write_keys(tmp_path / "other.key", make_keys())
    async with asyncio.timeout(SECONDS):
        assert await front.stdout.readline() == b"begun\n", (await front.stderr.read()).decode()
        lan.plug("far", "down")
        stranger = ("--join", topology["listen"], "--name", "far", "--keys", str(tmp_path / "other.key"))
        refused = await run(lan, "near", *NODE, *stranger)
        await asyncio.sleep(CUT_SECONDS)  # the length of the cut is what is tested
        lan.plug("far", "up")
        told, errors = await front.communicate()
        assert front.returncode == 0, errors.decode()
        assert [await node.wait() for node in nodes] == [0, 0]
        _, complaint = await refused.communicate()
        assert refused.returncode == 1 and b"did not answer" in complaint
    found = json.loads(told)
    assert found["tokens"] == await in_one_process(checkpoint.path)
    assert found["restarted"] == [], "the cut was shorter than what makes a node suspect"


async def test_a_group_over_two_hosts_gives_the_same_tokens_and_outlives_a_member(lan, key):
    """Two ranks in each of two stages. Both of the second host die while all prompts stream."""
    topology = {
        "model": str(DEMO),
        **SETTINGS,
        **{"listen": "tcp://10.77.0.1:5701", "transport": "tcp", "keys": str(key), "suspicion_seconds": 5},
        "nodes": {
            "front": {},
            **{f"near-{number}": {"host": "10.77.0.2"} for number in range(2)},
            **{f"far-{number}": {"host": "10.77.0.3"} for number in range(2)},
        },
        "actors": {
            "executor": {
                "nodes": ["near-0", "far-0", "near-1", "far-1"],
                "options": {"tensor_parallel": 2, "pipeline_parallel": 2},
            },
        },
    }
    arguments = ("--join", topology["listen"], "--keys", str(key))
    front = await run(lan, "front", sys.executable, "-c", FRONT, json.dumps([topology, PROMPTS, PARAMS]))
    keepers = [
        Keeper(lan, name.partition("-")[0], name, arguments) for name in topology["nodes"] if "-" in name
    ]
    try:
        async with asyncio.timeout(SECONDS):
            assert await front.stdout.readline() == b"begun\n", (await front.stderr.read()).decode()
            for keeper in keepers[2:]:
                keeper.kill()
            told, errors = await front.communicate()
    finally:
        await asyncio.gather(*(keeper.stop() for keeper in keepers))
    assert front.returncode == 0, errors.decode()
    found = json.loads(told)
    assert found["tokens"] == await in_one_process(DEMO)
    assert {name for name in found["restarted"] if "executor" in name} == {
        f"executor/{rank}" for rank in range(4)
    }


async def in_one_process(model: Path) -> list[list[int]]:
    async with pageant.Engine(model, placement="one", **SETTINGS) as engine:
        outputs = [await engine.complete(prompt, SamplingParams(**PARAMS)) for prompt in PROMPTS]
        return [output.outputs[0].token_ids for output in outputs]


async def test_kv_follows_a_request_to_another_host(lan, key, checkpoint):
    """Its blocks go from the store of one host to that of the other, encrypted, and are not computed again."""
    prompt = [4 + (7 * place) % 90 for place in range(200)]
    both = {"near": "10.77.0.2", "far": "10.77.0.3"}
    kinds = {"prefill": "near", "decode": "far"}
    names = ("executor", "scheduler", "blocks", "detokenizer", "grammar")
    topology = {
        "model": str(checkpoint.path),
        **SETTINGS,
        "listen": "tcp://10.77.0.1:5700",
        "keys": str(key),
        "nodes": {"front": {}, **{name: {"host": address} for name, address in both.items()}},
        "replicas": {
            kind: {"count": 1, "actors": {name: {"node": node} for name in names}}
            for kind, node in kinds.items()
        },
        "actors": {
            "store": {"each": "host", "options": {"memory": "8MiB"}},
            "router": {"options": {"handover": "always"}},
        },
    }
    front = await run(lan, "front", sys.executable, "-c", HANDED_OVER, json.dumps([topology, prompt, PARAMS]))
    nodes = [
        await run(lan, host, *NODE, "--join", topology["listen"], "--name", host, "--keys", str(key))
        for host in both
    ]
    async with asyncio.timeout(SECONDS):
        told, errors = await front.communicate()
        assert front.returncode == 0, errors.decode()
        assert [await node.wait() for node in nodes] == [0, 0]
    tokens, stores = json.loads(told)
    async with pageant.Engine(checkpoint.path, placement="one", **SETTINGS) as engine:
        right = await engine.complete(prompt, SamplingParams(**PARAMS))
    assert tokens == right.outputs[0].token_ids
    here = max(stores, key=lambda one: one["fetched"])
    there = min(stores, key=lambda one: one["fetched"])
    assert (here["fetched"], here["restored"], there["served"]) == (12, 12, 12)
    assert here["unfetched"] == here["spoilt"] == there["spoilt"] == 0


async def test_streams_move_between_hosts_and_outlive_one(lan, key, checkpoint):
    """A replica on each host. Its streams go to the other and back with their blocks, and then one host dies."""
    prompts = [[4 + (7 * place + index) % 90 for place in range(200)] for index in range(4)]
    params = {**PARAMS, "max_tokens": 250}
    names = ("executor", "scheduler", "blocks", "detokenizer", "grammar")
    topology = {
        "model": str(checkpoint.path),
        **SETTINGS,
        **{"listen": "tcp://10.77.0.1:5702", "keys": str(key), "suspicion_seconds": 5},
        "nodes": {"front": {}, "host-0": {"host": "10.77.0.2"}, "host-1": {"host": "10.77.0.3"}},
        "replicas": 2,
        "actors": {
            **{name: {"node": "host-{replica}"} for name in names},
            "store": {"each": "host", "options": {"memory": "8MiB"}},
        },
    }
    front = await run(lan, "front", sys.executable, "-c", MOVED, json.dumps([topology, prompts, params, 48]))
    arguments = ("--join", topology["listen"], "--keys", str(key))
    keepers = [Keeper(lan, host, node, arguments) for host, node in (("near", "host-0"), ("far", "host-1"))]
    try:
        async with asyncio.timeout(SECONDS):
            assert await front.stdout.readline() == b"moved\n", (await front.stderr.read()).decode()
            keepers[1].kill()
            told, errors = await front.communicate()
    finally:
        await asyncio.gather(*(keeper.stop() for keeper in keepers))
    assert front.returncode == 0, errors.decode()
    found = json.loads(told)
    async with pageant.Engine(checkpoint.path, placement="one", **SETTINGS) as engine:
        right = [await engine.complete(prompt, SamplingParams(**params)) for prompt in prompts]
    assert found["tokens"] == [one.outputs[0].token_ids for one in right]
    assert all(found["moved"]) and found["spoilt"] == [0, 0]
    assert sum(found["restored"]) >= sum(found["fetched"]) >= 12, "one prompt's full blocks at least"
