"""A KV cache in 8 bits beside every other feature: an engine with both gives the tokens of a plain one in such a cache.

Chunks, tiers, windows, drafts of each kind, beams, swaps and deaths are in `test_kv_8_bits`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

import pageant
from pageant import SamplingParams
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.replay.load import read_load
from pageant.scripts.replay.run import play_model

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")
SETTINGS: dict[str, Any] = {
    "placement": "one",
    "threads": 1,
    "dtype": "float32",
    "kv_cache_dtype": "int8",
    "num_blocks": 96,
    "max_model_len": 160,
}
ALONE = {"max_num_seqs": 1, "enable_prefix_caching": False, "async_scheduling": False}
STEM = [5 + 7 * place % 200 for place in range(40)]
PROMPTS = [STEM + [index] * index for index in range(4, 9)]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)  # so that answers repeat themselves
KINDS: dict[str, tuple[SamplingParams, str | None]] = {
    "greedy": (GREEDY, None),
    "adapted": (GREEDY, "mine"),
    "sampled": (SamplingParams(temperature=1, seed=4, n=2, max_tokens=16, ignore_eos=True), None),
    "guided": (
        SamplingParams(
            temperature=1, seed=2, max_tokens=24, structured_outputs={"regex": "[a-z]{9} [0-9]{8}"}
        ),
        None,
    ),
    "guided and adapted": (
        SamplingParams(temperature=0, max_tokens=24, structured_outputs={"choice": ["a list", "a tuple"]}),
        "mine",
    ),
}


@pytest.fixture(scope="module")
def settings(save_adapter: Callable[..., Any]) -> dict[str, Any]:
    adapter = save_adapter(
        AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype="float32"), LINEAR, size=0.2
    )
    return {**SETTINGS, "adapters": {"mine": str(adapter.path)}}


async def answers(engine: pageant.Engine) -> dict[str, list[Any]]:
    """Ask for everything at once: every prompt in every kind."""
    asked = [(kind, prompt) for kind in KINDS for prompt in PROMPTS]
    outputs = await asyncio.gather(
        *(engine.complete(prompt, KINDS[kind][0], adapter=KINDS[kind][1]) for kind, prompt in asked)
    )
    found: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for (kind, _), output in zip(asked, outputs, strict=True):
        found[kind].append([one.token_ids for one in output.outputs])
    return found


@pytest.fixture(scope="module")
def right(settings: dict[str, Any]) -> dict[str, list[Any]]:
    async def main() -> dict[str, list[Any]]:
        async with pageant.Engine(DEMO_MODEL, **settings, **ALONE) as engine:
            return await answers(engine)

    found = asyncio.run(main())
    assert found["greedy"] != found["adapted"], "the adapter is meant to matter"
    return found


@pytest.mark.parametrize(
    ("changes", "happened"),
    [
        (
            {"tensor_parallel": 2, "speculation": {"method": "ngram", "tokens": 3, "adaptive": False}},
            "drafts_accepted",
        ),
        (
            {"wire": "always", "max_num_batched_tokens": 24, "num_blocks": 20, "host_memory": "1MiB"},
            "preemptions",
        ),
    ],
    ids=["a group, with drafts", "in chunks, over the wire, short of blocks"],
)
async def test_every_kind_of_request_is_answered_as_alone(
    settings: dict[str, Any],
    right: dict[str, list[Any]],
    changes: dict[str, Any],
    happened: str,
) -> None:
    async with pageant.Engine(DEMO_MODEL, **settings | changes) as engine:
        assert await answers(engine) == right
        assert await answers(engine) == right, "from what is cached, too"
        counters = (await engine.scheduler_statistics()).counters
    assert counters[happened] > 0 and counters["tokens_cached"] > 0


async def test_sleep_records_and_replays_change_no_token(
    settings: dict[str, Any], right: dict[str, list[Any]], tmp_path: Path
) -> None:
    path = tmp_path / "one.recording"
    async with pageant.Engine(DEMO_MODEL, **settings) as engine:
        async with engine.record(path):
            said = [(await engine.complete(prompt, GREEDY)).outputs[0].token_ids for prompt in PROMPTS]
        for level in (1, 2):
            await engine.sleep(level)
            await engine.wake_up()
            assert await answers(engine) == right
    assert [[tokens] for tokens in said] == right["greedy"]
    load = read_load(path)
    given = {"model": str(DEMO_MODEL), "kv_cache_dtype": "int8", "dtype": "float32", "threads": 1}
    played, _ = await asyncio.to_thread(play_model, path, load, given, 1000.0)
    assert [course.token_ids.tolist() for course in played] == said
