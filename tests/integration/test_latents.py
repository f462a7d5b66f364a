"""Latent attention through whole engines: a request has the tokens that it has alone, whatever happens beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import pageant
from pageant import SamplingParams
from pageant.actors.blocks.costs import MoveCosts
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.protocol.errors import StartupError
from tests.integration.test_kv_8_bits import ALONE, CROWDED, SETTINGS, crowd, tokens_of
from tests.random_adapters import save_adapter

BLOCK_SIZE = SETTINGS["block_size"]
BLOCK_BYTES = 2 * (24 + 8) * BLOCK_SIZE * 4
"""Of two layers: a latent and a key that is turned for each token, once for all heads, in float32."""
MODULES = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "mlp.down_proj", "shared_experts.up_proj")


@pytest.fixture(scope="module")
def saved(make_checkpoint: Any) -> Any:
    return make_checkpoint("deepseek_v3")


@pytest.fixture(scope="module")
def alone(saved: Any) -> list[list[int]]:
    prompts, params = crowd(saved.vocab_size)
    with pageant.LLM(saved.path, **SETTINGS, **ALONE) as llm:
        return tokens_of(llm.generate(prompts, params))


def test_greedy_tokens_are_those_of_transformers(saved: Any) -> None:
    prompts = [[5, 80, 33], [7 + 3 * place % 200 for place in range(50)]]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with pageant.LLM(saved.path, placement="one", progress=False, threads=1, num_blocks=64) as llm:
        found = tokens_of(llm.generate(prompts, params))
    assert found == [saved.greedy(prompt, 20) for prompt in prompts]


def test_chunks_hits_copies_preemptions_and_tiers_of_latents(
    saved: Any, alone: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MoveCosts, "move_pays", lambda self, tokens, *ways: True)
    prompts, params = crowd(saved.vocab_size)
    tiers = {"host_memory": 60 * BLOCK_BYTES, "disk_space": "4MiB", "disk_path": str(tmp_path)}
    with pageant.LLM(saved.path, **SETTINGS, **CROWDED, **tiers, num_blocks=84) as llm:
        outputs = llm.generate(prompts, params)
        counters, pool = llm.scheduler_statistics().counters, llm.pool_statistics()
    assert tokens_of(outputs) == alone
    host, disk = pool.tiers
    assert host.num_blocks == 60, "a block holds latents alone"
    happened = {
        "chunks": counters["chunk_splits"],
        "preemptions": counters["preemptions"],
        "prefix hits": sum(output.num_cached_tokens > 0 for output in outputs),
        "copies on write": pool.blocks_copied,
        "blocks restored": host.blocks_restored,
        "blocks read from the disk": disk.blocks_restored,
    }
    assert {name: count for name, count in happened.items() if not count} == {}


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_drafts_are_verified_over_latents(saved: Any, method: str) -> None:
    """The draft model is the model itself, with latents of its own in each block."""
    model = {"model": str(saved.path)} if method == "draft" else {}
    prompts = [[9, 10, 11, 12] * 6, [60, 61] * 9]
    few = {token: 60.0 for token in (9, 10, 11)}  # so that answers repeat themselves
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, logit_bias=few)
    answers = []
    for speculation in (None, {"method": method, "adaptive": False, **model}):
        with pageant.LLM(saved.path, placement="one", speculation=speculation, **SETTINGS) as llm:
            answers.append(tokens_of(llm.generate(prompts, params)))
            counters = llm.scheduler_statistics().counters
    assert answers[0] == answers[1] and len(set(answers[0][0])) > 1
    assert counters["drafts_accepted"] > 0


@pytest.mark.parametrize("group", [{"tensor_parallel": 2}, {"pipeline_parallel": 2}], ids=str)
def test_groups_share_heads_or_layers_out(saved: Any, alone: list[list[int]], group: dict[str, int]) -> None:
    """Each rank has some of the heads, and all latents."""
    prompts, params = crowd(saved.vocab_size)
    with pageant.LLM(saved.path, **SETTINGS, **CROWDED, num_blocks=120, **group) as llm:
        found = tokens_of(llm.generate(prompts[:8], params[:8]))
    assert found == alone[:8]


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_weights_answer_alike_alone_and_in_a_crowd(saved: Any, quantization: str) -> None:
    prompts, params = ([*column[:12]] for column in crowd(saved.vocab_size))
    answers = []
    for extra in (ALONE, CROWDED):
        with pageant.LLM(saved.path, **SETTINGS, **extra, quantization=quantization, num_blocks=96) as llm:
            answers.append(tokens_of(llm.generate(prompts, params)))
    assert answers[0] == answers[1]


def test_adapters_add_to_what_makes_latents(saved: Any, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path, saved.model, MODULES, size=0.2)
    prompt = [7 + 3 * place % 200 for place in range(30)]
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)

    async def main() -> list[list[int]]:
        settings = {"placement": "one", "threads": 1, "num_blocks": 64, "adapters": {"mine": str(tmp_path)}}
        async with pageant.Engine(saved.path, **settings) as engine:
            asked = (engine.complete(prompt, params, adapter=name) for name in (None, "mine"))
            return [output.outputs[0].token_ids for output in await asyncio.gather(*asked)]

    plain, adapted = asyncio.run(main())
    oracle = type(saved)(tmp_path, adapter.merged, saved.vocab_size)
    assert plain == saved.greedy(prompt, 16) and adapted == oracle.greedy(prompt, 16) != plain


def test_adapters_of_what_makes_heads_of_latents_are_refused(saved: Any, tmp_path: Path) -> None:
    from pageant.models.adapters.checkpoint import AdapterCheckpoint

    save_adapter(tmp_path, saved.model, ("kv_b_proj",))
    with pytest.raises(
        CheckpointError, match=r"kv_b_proj; expected none for what makes keys and values"
    ) as error:
        AdapterCheckpoint(tmp_path).targets(Checkpoint(saved.path))
    assert "merge_and_unload" in str(error.value)


def test_latents_in_8_bits_are_refused(saved: Any) -> None:
    settings = {**SETTINGS, "kv_cache_dtype": "int8"}
    with pytest.raises(StartupError, match="kv_cache_dtype is int8, and the model caches latents"):
        pageant.LLM(saved.path, placement="one", **settings)
