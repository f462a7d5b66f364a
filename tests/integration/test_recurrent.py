"""Recurrent layers through whole engines: a request has the tokens that it has alone, whatever happens beside it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import pageant
from pageant import SamplingParams
from pageant.actors.blocks.costs import MoveCosts
from pageant.protocol.errors import PageantError
from tests.integration.stores import store_of
from tests.integration.test_kv_8_bits import (
    ALONE,
    CROWDED,
    SETTINGS,
    a_death_and_a_swap_change_no_token,
    behind_growing,
    crowd,
    tokens_of,
)
from tests.integration.test_store import saved as blocks_are_saved
from tests.random_adapters import save_adapter


@pytest.fixture(scope="module")
def saved(make_checkpoint: Any) -> Any:
    return make_checkpoint("qwen3_next")


@pytest.fixture(scope="module")
def alone(saved: Any) -> list[list[int]]:
    prompts, params = behind_growing(*crowd(saved.vocab_size))
    with pageant.LLM(saved.path, **SETTINGS, **ALONE) as llm:
        return tokens_of(llm.generate(prompts, params))


def test_greedy_tokens_are_those_of_transformers(saved: Any) -> None:
    prompts = [[5, 80, 33], [7 + 3 * place % 200 for place in range(50)]]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with pageant.LLM(saved.path, placement="one", progress=False, threads=1, num_blocks=200) as llm:
        found = tokens_of(llm.generate(prompts, params))
    assert found == [saved.greedy(prompt, 20) for prompt in prompts]


def test_chunks_hits_preemptions_and_tiers_of_states(
    saved: Any, alone: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MoveCosts, "move_pays", lambda self, tokens, *ways: True)
    prompts, params = behind_growing(*crowd(saved.vocab_size))
    tiers = {"host_memory": "192KiB", "disk_space": "4MiB", "disk_path": str(tmp_path)}
    with pageant.LLM(saved.path, **SETTINGS, **CROWDED, **tiers, num_blocks=140) as llm:
        outputs = llm.generate(prompts, params)
        counters, pool = llm.scheduler_statistics().counters, llm.pool_statistics()
    assert tokens_of(outputs) == alone
    host, disk = pool.tiers
    happened = {
        "chunks": counters["chunk_splits"],
        "preemptions": counters["preemptions"],
        "prefix hits": sum(output.num_cached_tokens > 0 for output in outputs),
        "states given back": pool.blocks_given_back,
        "blocks restored": host.blocks_restored,
        "blocks read from the disk": disk.blocks_restored,
    }
    assert {name: count for name, count in happened.items() if not count} == {}
    assert pool.blocks_copied == 0, "there is no state of a part of a block"


@pytest.mark.parametrize("drafts", [1, 4])
def test_states_are_rolled_back_behind_rejected_drafts(saved: Any, drafts: int) -> None:
    prompts = [[9, 10, 11, 12] * 6, [60, 61] * 9, [7 + 3 * place % 200 for place in range(40)]]
    few = {token: 9.0 for token in range(9, 15)}  # so that answers repeat themselves, and not always
    params = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True, logit_bias=few)
    answers = []
    for speculation in (None, {"method": "ngram", "tokens": drafts, "adaptive": False}):
        with pageant.LLM(saved.path, placement="one", speculation=speculation, **SETTINGS) as llm:
            answers.append(tokens_of(llm.generate(prompts, params)))
            answers.append(
                tokens_of(llm.generate(answers[-1], params.__class__(temperature=0, max_tokens=9)))
            )
            counters = llm.scheduler_statistics().counters
    assert answers[:2] == answers[2:] and len(set(answers[0][0])) > 1
    assert counters["drafts_accepted"] > 0
    assert counters["drafts_accepted"] < counters["drafts_proposed"]


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (
            {"speculation": {"method": "draft"}},
            "speculation is of method 'draft', and the model has recurrent",
        ),
        ({"tensor_parallel": 2}, "recurrent layers are not shared out in this version; expected 1"),
        ({"pipeline_parallel": 2}, "recurrent layers are not shared out in this version; expected 1"),
    ],
    ids=str,
)
def test_what_does_not_go_with_states_is_refused_by_name(
    saved: Any, settings: dict[str, Any], found: str
) -> None:
    if "speculation" in settings:
        settings = {"speculation": {**settings["speculation"], "model": str(saved.path)}}
    with pytest.raises(PageantError, match=found):
        pageant.LLM(saved.path, placement="one", **(SETTINGS | settings))


def test_a_repeated_prefix_is_a_hit_that_changes_no_token(saved: Any) -> None:
    """Prompts share any number of a prefix's 1,000 tokens, and go on otherwise from there."""
    chance = random.Random(5)
    prefix = [chance.randrange(4, saved.vocab_size) for _ in range(1000)]
    lengths = [1000, *(chance.randint(1, 1000) for _ in range(9)), 16, 17, 480]
    prompts = [[*prefix[:length], *(chance.randrange(4, 200) for _ in range(9))] for length in lengths]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    settings = {**SETTINGS, "block_size": 16, "max_model_len": 1040, "max_num_batched_tokens": 256}
    answers = {}
    for caches in (False, True):
        with pageant.LLM(saved.path, placement="one", enable_prefix_caching=caches, **settings) as llm:
            first = llm.generate([prefix], params)
            before = llm.pool_statistics().tokens_hit
            outputs = [first[0], *llm.generate(prompts, params)]
            hits = llm.pool_statistics().tokens_hit - before
        answers[caches] = tokens_of(outputs)
        expected = [length // 16 * 16 if caches else 0 for length in lengths]
        # Of the prefix itself, whose last token must be computed, one block fewer.
        assert [output.num_cached_tokens for output in outputs[1:]] == [min(one, 992) for one in expected]
        assert hits == sum(min(one, 992) for one in expected)
    assert answers[True] == answers[False]
    assert min(992, lengths[0] // 16 * 16) > 0.8 * 1000


def test_samples_of_a_prompt_share_its_states(saved: Any) -> None:
    prompt = [7 + 3 * place % 200 for place in range(70)]
    params = SamplingParams(n=4, temperature=1.0, seed=3, max_tokens=20, ignore_eos=True)
    found = []
    for extra in (ALONE, {**CROWDED, "num_blocks": 300}):
        with pageant.LLM(saved.path, **SETTINGS, **extra) as llm:
            found.append([output.token_ids for output in llm.generate([prompt], params)[0].outputs])
            hits = llm.pool_statistics().tokens_hit
    assert found[0] == found[1] and len({tuple(tokens) for tokens in found[0]}) == 4
    assert hits == 3 * 68, "all full blocks but the last, of three samples"


def test_a_death_a_swap_and_a_sleep_change_no_token(saved: Any) -> None:
    prompts = [[*range(10, 30), extra] for extra in range(4, 10)]
    params = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
    with pageant.LLM(saved.path, **SETTINGS, **ALONE) as llm:
        right = tokens_of(llm.generate(prompts, params))
    with pageant.LLM(saved.path, placement="auto", **SETTINGS) as llm:
        a_death_and_a_swap_change_no_token(llm, prompts, params, right)
        llm.sleep(1)
        llm.wake_up()
        assert tokens_of(llm.generate(prompts, params)) == right


def test_adapters_add_to_gated_attention_and_are_refused_in_recurrent_layers(
    saved: Any, tmp_path: Path
) -> None:
    adapter = save_adapter(tmp_path, saved.model, ("q_proj", "o_proj", "shared_expert.up_proj"), size=0.1)
    prompt = [7 + 3 * place % 200 for place in range(30)]
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    settings = {**SETTINGS, "placement": "one", "adapters": {"mine": str(tmp_path)}}
    with pageant.LLM(saved.path, **settings) as llm:
        found = [
            llm.generate([prompt], params, adapter=name)[0].outputs[0].token_ids for name in (None, "mine")
        ]
    oracle = type(saved)(tmp_path, adapter.merged, saved.vocab_size)
    assert found == [saved.greedy(prompt, 16), oracle.greedy(prompt, 16)] and found[0] != found[1]
    save_adapter(tmp_path, saved.model, ("in_proj_qkvz",))
    with pytest.raises(PageantError, match=r"in_proj_qkvz; expected linear maps of attention and of MLPs"):
        pageant.LLM(saved.path, **settings)


def test_states_come_from_a_store_that_another_replica_filled(
    saved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MoveCosts, "move_pays", lambda self, tokens, *ways: True)
    prompt = [7 + 3 * place % 200 for place in range(100)]
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
    actors = {"router": {"options": {"routing": "round_robin"}}}
    settings = {key: value for key, value in SETTINGS.items() if key != "progress"} | {"block_size": 16}
    settings |= {"placement": "one", "replicas": 2, "actors": actors, "store_memory": "8MiB"}

    async def main() -> None:
        async with pageant.Engine(saved.path, **settings) as engine:
            first = await engine.complete(prompt, params)
            await blocks_are_saved(engine, 12)
            other = await engine.complete(prompt, params)
            assert other.outputs[0].token_ids == first.outputs[0].token_ids
            assert (first.num_cached_tokens, other.num_cached_tokens) == (0, 96)
            found = await store_of(engine)
            assert found.restored == 6 + 1, "keys and values of all tokens, and the states after the last"

    asyncio.run(main())
