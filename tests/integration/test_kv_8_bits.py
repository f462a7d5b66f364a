"""A KV cache in 8 bits gives a request the tokens that it has alone in such a cache, whatever happens to it."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import pageant
from pageant import SamplingParams
from pageant.actors.blocks.costs import MoveCosts
from pageant.scripts.engine_options import DEMO_MODEL

BLOCK_SIZE = 4
NUM_REQUESTS = 48
NUM_GROWING = 6
LAYER_BYTES = (
    2 * 2 * BLOCK_SIZE * (16 + 4)
)  # of a block: keys and values, of two heads of 16 codes and a scale
SETTINGS: dict[str, Any] = {
    "progress": False,
    "threads": 1,
    "dtype": "float32",
    "deterministic": True,
    "block_size": BLOCK_SIZE,
    "max_model_len": 144,
}
ALONE = {"placement": "one", "max_num_seqs": 1, "enable_prefix_caching": False, "async_scheduling": False}
CROWDED = {"placement": "one", "max_num_seqs": 16, "max_num_batched_tokens": 24}
QUESTIONS = [
    "What is a lambda?",
    "What does the with statement do?",
    "What are decorators?",
    "Explain slices.",
]
GREEDY = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)  # so that answers repeat themselves


def crowd(vocab_size: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts that share stems of any length, and how each is answered."""
    chance = random.Random(3)
    stems = [[chance.randrange(4, vocab_size) for _ in range(70)] for _ in range(3)]
    prompts, params = [], []
    for index in range(NUM_REQUESTS):
        stem = chance.choice(stems)[: chance.randint(0, 70)]
        prompts.append([*stem, *(chance.randrange(4, vocab_size) for _ in range(chance.randint(1, 24)))])
        sampling = {"temperature": 0.0} if index % 2 else {"temperature": 1.0, "seed": index, "top_p": 0.9}
        params.append(SamplingParams(**sampling, max_tokens=chance.randint(8, 40), ignore_eos=True))
    return prompts, params


def behind_growing(
    prompts: list[list[int]], params: list[SamplingParams]
) -> tuple[list[list[int]], list[SamplingParams]]:
    """Return requests behind some with short prompts, which begin together and outgrow any small memory together.

    Whether others are preempted depends on how fast steps are.
    """
    greedy = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)
    growing = [[10 + number, 50] for number in range(NUM_GROWING)]
    return growing + prompts, [greedy] * NUM_GROWING + params


def tokens_of(outputs: list[pageant.RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def a_death_and_a_swap_change_no_token(
    llm: pageant.LLM, prompts: list[list[int]], params: Any, right: list[list[int]]
) -> None:
    """Kill the executor while it serves, then swap the scheduler: the tokens are right both times."""
    caught: list[list[list[int]]] = []
    thread = threading.Thread(target=lambda: caught.append(tokens_of(llm.generate(prompts, params))))
    thread.start()
    while not llm.scheduler_statistics().num_running:
        pass
    os.kill(next(node.pid for node in llm.statistics() if node.node == "executor"), signal.SIGKILL)
    thread.join(timeout=240)
    assert caught == [right]
    assert llm.scheduler_statistics().counters["recomputed"] > 0
    assert llm.swap("scheduler", options={"policy": "shortest"}) > 1
    assert tokens_of(llm.generate(prompts, params)) == right


@pytest.fixture
def moving_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every move pay: what is quicker for models this small is a matter of chance."""
    monkeypatch.setattr(MoveCosts, "move_pays", lambda self, tokens, *ways: True)


@pytest.mark.parametrize(
    ("family", "kv", "num_blocks", "layers"),
    [("llama", "int8", 84, 2), ("llama", "fp8", 84, 2), ("gemma3", "int8", 148, 1)],
    ids=["int8", "fp8", "windows"],
)
def test_chunks_hits_copies_preemptions_and_tiers(
    make_checkpoint: Any,
    moving_pays: None,
    tmp_path: Path,
    family: str,
    kv: str,
    num_blocks: int,
    layers: int,
) -> None:
    checkpoint = make_checkpoint(family)
    prompts, params = crowd(checkpoint.vocab_size)
    settings = {**SETTINGS, "kv_cache_dtype": kv}
    with pageant.LLM(checkpoint.path, **settings, **ALONE) as llm:
        alone = tokens_of(llm.generate(prompts, params))
    tiers = {"host_memory": 60 * layers * LAYER_BYTES, "disk_space": "4MiB", "disk_path": str(tmp_path)}
    with pageant.LLM(checkpoint.path, **settings, **CROWDED, **tiers, num_blocks=num_blocks) as llm:
        outputs = llm.generate(prompts, params)
        counters, pool = llm.scheduler_statistics().counters, llm.pool_statistics()
    assert tokens_of(outputs) == alone
    host, disk = pool.tiers
    assert host.num_blocks == 60, "a block is counted with its scales"
    happened = {
        "chunks": counters["chunk_splits"],
        "preemptions": counters["preemptions"],
        "prefix hits": sum(output.num_cached_tokens > 0 for output in outputs),
        "copies on write": pool.blocks_copied,
        "blocks restored": host.blocks_restored,
        "blocks read from the disk": disk.blocks_restored,
        "blocks given back": pool.blocks_given_back if family == "gemma3" else 1,
    }
    assert {name: count for name, count in happened.items() if not count} == {}


def test_a_model_that_transformers_runs_has_such_a_cache_too(make_checkpoint: Any) -> None:
    checkpoint = make_checkpoint("cohere2, which transformers runs")
    prompts, params = ([*column[:6]] for column in crowd(checkpoint.vocab_size))
    settings = {**SETTINGS, "kv_cache_dtype": "int8"}
    answers = []
    for extra in (ALONE, {**ALONE, "enable_prefix_caching": True}):
        with pageant.LLM(checkpoint.path, **settings, **extra) as llm:
            for _ in range(2):
                answers.append(tokens_of(llm.generate(prompts, params)))
            hits = llm.scheduler_statistics().counters["tokens_cached"]
    assert all(answer == answers[0] for answer in answers) and hits > 0


@pytest.mark.parametrize(
    "speculation",
    [
        {"method": "ngram", "adaptive": False},
        {"method": "draft", "model": str(DEMO_MODEL / "draft"), "adaptive": False},
        {"method": "eagle", "model": str(DEMO_MODEL / "eagle"), "adaptive": False},
        {"method": "medusa", "model": str(DEMO_MODEL / "medusa"), "tokens": 7, "adaptive": False},
    ],
    ids=lambda speculation: speculation["method"],
)
def test_drafts_of_any_kind_change_no_token(speculation: dict[str, Any], right: list[list[int]]) -> None:
    settings = {**SETTINGS, "kv_cache_dtype": "int8", "max_model_len": 240, "block_size": 16}
    with pageant.LLM(DEMO_MODEL, placement="one", speculation=speculation, **settings) as llm:
        found = tokens_of(llm.generate(QUESTIONS, GREEDY))
        counters = llm.scheduler_statistics().counters
    assert found == right
    assert counters["drafts_accepted"] > 0


@pytest.fixture(scope="module")
def right() -> list[list[int]]:
    settings = {**SETTINGS, "kv_cache_dtype": "int8", "max_model_len": 240, "block_size": 16}
    with pageant.LLM(DEMO_MODEL, placement="one", **settings) as llm:
        return tokens_of(llm.generate(QUESTIONS, GREEDY))


def test_beams_a_swap_and_a_death_change_no_token(checkpoint: Any) -> None:
    prompts = [[*range(10, 30), extra] for extra in range(4, 12)]
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    beams = pageant.BeamSearchParams(beam_width=3, max_tokens=12, ignore_eos=True)
    settings = {**SETTINGS, "kv_cache_dtype": "fp8", "max_model_len": 256}
    with pageant.LLM(checkpoint.path, **settings, **ALONE) as llm:
        right = tokens_of(llm.generate(prompts, params))
        searched = [beam.token_ids for beam in llm.beam_search(prompts[:1], beams)[0].sequences]
    with pageant.LLM(checkpoint.path, placement="auto", **settings) as llm:
        found = [beam.token_ids for beam in llm.beam_search(prompts[:1], beams)[0].sequences]
        assert found == searched and len(found) == 3
        a_death_and_a_swap_change_no_token(llm, prompts, params, right)


def test_the_same_memory_has_nearly_twice_the_tokens(checkpoint: Any) -> None:
    """A head of 16 takes 20 bytes in the place of 32; one of 128 takes 132 in the place of 256."""
    counts = {}
    for kv in ("auto", "int8"):
        settings = {**SETTINGS, "dtype": "bfloat16", "kv_cache_memory": "300KiB", "kv_cache_dtype": kv}
        with pageant.LLM(checkpoint.path, placement="one", **settings) as llm:
            counts[kv] = llm.pool_statistics().num_blocks
    assert counts == {"auto": 300 * 1024 // (2 * 2 * 2 * 4 * 32), "int8": 300 * 1024 // (2 * 2 * 2 * 4 * 20)}


def test_scales_that_cannot_be_aligned_are_refused_by_name(make_checkpoint: Any) -> None:
    from pageant.models.kv_cache import KVLayout
    from pageant.protocol.errors import ConfigurationError

    message = "kv_cache_dtype is in 8 bits, block_size is 1, and heads have 6 numbers; expected a block_size"
    with pytest.raises(ConfigurationError, match=message):
        KVLayout(1, 1, 6, torch.int8).allocate(8, 1, torch.device("cpu"))
