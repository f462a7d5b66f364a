"""Requests that are handed over with adapters, drafts, 8-bit KV, several layer groups and several ranks."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import pageant
from pageant import SamplingParams
from pageant.protocol.scheduling import GetSchedulerStatistics
from tests.integration.stores import store_at_rest

DEMO = Path(__file__).parents[2] / "models" / "demo"
SETTINGS: dict[str, Any] = {"placement": "one", "dtype": "float32", "threads": 1, "num_blocks": 64}
ACTORS = {"router": {"options": {"handover": "always"}}, "store": {"options": {"memory": "16MiB"}}}
KINDS: dict[str, Any] = {"prefill": {}, "decode": {}}
LENGTH = 24
DRAFTS = {"method": "ngram", "tokens": 3, "adaptive": False}
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.0, seed=3, max_tokens=LENGTH, ignore_eos=True, n=2)
Tokens = list[list[int]]
Adapters = tuple[str | None, ...]


def prompts_of(vocab_size: int, seed: int = 4) -> Tokens:
    """Prompts that end within a block, at its end, and past a window. Two begin alike."""
    rng = random.Random(seed)
    ids = [rng.randrange(4, vocab_size) for _ in range(200)]
    return [ids[:150], ids[:96], ids[100:140], ids[60:163]]


def kind_of(role: str, **shape: int) -> dict[str, Any]:
    """Return a kind of that role whose executors are a group of such a shape."""
    return {"role": role, "actors": {"executor": {"count": 2 if shape else 1, "options": shape}}}


async def tokens_of(engine: pageant.Engine, vocab_size: int, adapters: Adapters) -> list[Tokens]:
    """The tokens of greedy and then of drawn outputs, with each adapter, side by side."""
    asked = [
        engine.complete(prompt, params, adapter=name)
        for seed, params in enumerate((GREEDY, DRAWN))
        for name in adapters
        for prompt in prompts_of(vocab_size, seed)
    ]
    return [[one.token_ids for one in found.outputs] for found in await asyncio.gather(*asked)]


def alone_and_apart(
    path: Path, vocab_size: int, kinds: dict[str, Any] = KINDS, names: Adapters = (None,), **settings: Any
) -> tuple[list[Tokens], list[Tokens]]:
    """The tokens of one engine, and of replicas that hand all requests over."""
    handed_over = len(names) * (1 + DRAWN.n) * len(prompts_of(vocab_size))

    async def run() -> tuple[list[Tokens], list[Tokens]]:
        async with pageant.Engine(path, **SETTINGS, **settings) as engine:
            alone = await tokens_of(engine, vocab_size, names)
        async with pageant.Engine(path, replicas=kinds, actors=ACTORS, **SETTINGS, **settings) as engine:
            apart = await tokens_of(engine, vocab_size, names)
            prefills = range(sum(kind.get("role", name) == "prefill" for name, kind in kinds.items()))
            found = [
                await engine.ask(f"replica-{one}/scheduler", GetSchedulerStatistics()) for one in prefills
            ]
            assert all(one.counters["handed_over"] for one in found)
            assert sum(one.counters["handed_over"] for one in found) == handed_over
            store = await store_at_rest(engine)
            assert store.restored > 0
            assert not store.spoilt
        return alone, apart

    return asyncio.run(run())


def test_drafts_and_adapters_change_no_token(checkpoint, save_adapter):
    """The greedy tokens without an adapter are transformers' as well."""
    adapter = save_adapter(checkpoint.model, ("q_proj", "v_proj", "down_proj"), size=0.2)
    names: Adapters = (None, "one")
    settings = {"speculation": DRAFTS, "adapters": {"one": adapter.path}}
    alone, apart = alone_and_apart(checkpoint.path, checkpoint.vocab_size, names=names, **settings)
    assert apart == alone
    prompts = prompts_of(checkpoint.vocab_size, seed=0)
    plain, adapted = apart[: len(prompts)], apart[len(prompts) : 2 * len(prompts)]
    assert [one for (one,) in plain] == [checkpoint.greedy(one, LENGTH) for one in prompts]
    assert adapted != plain, "the adapter makes a difference"


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_layer_groups_change_no_token_and_8_bits_bring_their_scales(make_checkpoint, kv_cache_dtype):
    checkpoint = make_checkpoint("gemma3")
    settings = {"kv_cache_dtype": kv_cache_dtype, "speculation": DRAFTS}
    alone, apart = alone_and_apart(checkpoint.path, checkpoint.vocab_size, **settings)
    assert apart == alone


def test_ranks_of_one_kind_read_what_those_of_others_wrote():
    """With sums in as many parts everywhere, tokens are those of one executor."""
    kinds = {
        "alone": kind_of("prefill"),
        "staged": kind_of("prefill", pipeline_parallel=2),
        "decode": kind_of("decode", tensor_parallel=2),
    }
    settings = {"kernels": "reference", "tensor_segments": 2, "max_model_len": 256}
    alone, apart = alone_and_apart(DEMO, 256, kinds, **settings)
    assert apart == alone
