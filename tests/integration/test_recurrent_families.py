"""Short convolutions and Mamba-2 through whole engines: a request has the tokens that it has alone."""

from __future__ import annotations

from typing import Any

import pytest

import pageant
from pageant import SamplingParams
from pageant.protocol.errors import PageantError
from tests.integration.test_kv_8_bits import (
    ALONE,
    CROWDED,
    SETTINGS,
    a_death_and_a_swap_change_no_token,
    crowd,
    tokens_of,
)

NUM_BLOCKS = {"lfm2": 75, "granite_hybrid": 136, "nemotron_h": 136, "falcon_h1": 94}


@pytest.fixture(scope="module", params=NUM_BLOCKS)
def saved(request: pytest.FixtureRequest, make_checkpoint: Any) -> Any:
    return make_checkpoint(request.param)


@pytest.fixture
def num_blocks(request: pytest.FixtureRequest) -> int:
    return NUM_BLOCKS[request.node.callspec.params["saved"]]


def test_chunks_hits_preemptions_and_drafts_change_no_token(saved: Any, num_blocks: int) -> None:
    """Requests behind five that begin together, and outgrow the memory together."""
    prompts, params = (column[:8] for column in crowd(saved.vocab_size))
    prompts = [[10 + number, 50] for number in range(5)] + prompts
    params = [SamplingParams(temperature=0, max_tokens=70, ignore_eos=True)] * 5 + params
    with pageant.LLM(saved.path, **SETTINGS, **ALONE) as llm:
        alone = tokens_of(llm.generate(prompts, params))
    assert alone[:2] == [saved.greedy(prompt, 70) for prompt in prompts[:2]]
    speculation = {"method": "ngram", "tokens": 3, "adaptive": False}
    with pageant.LLM(
        saved.path, **SETTINGS, **CROWDED, num_blocks=num_blocks, speculation=speculation
    ) as llm:
        outputs = llm.generate(prompts, params)
        counters, pool = llm.scheduler_statistics().counters, llm.pool_statistics()
    assert tokens_of(outputs) == alone
    happened = {
        "chunks": counters["chunk_splits"],
        "preemptions": counters["preemptions"],
        "prefix hits": sum(output.num_cached_tokens > 0 for output in outputs),
        "drafts": counters["drafts_proposed"],
        "states given back": pool.blocks_given_back,
    }
    assert {name: count for name, count in happened.items() if not count} == {}


def test_samples_of_a_prompt_share_its_states(saved: Any) -> None:
    prompt = [7 + 3 * place % 200 for place in range(70)]
    params = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
    found = []
    for extra in (ALONE, {**CROWDED, "num_blocks": 600}):
        with pageant.LLM(saved.path, **SETTINGS, **extra) as llm:
            found.append([output.token_ids for output in llm.generate([prompt], params)[0].outputs])
            hits = llm.pool_statistics().tokens_hit
    assert found[0] == found[1] and len({tuple(tokens) for tokens in found[0]}) == 3
    assert hits == 2 * 68, "all full blocks but the last, of two samples"


@pytest.mark.parametrize("saved", ["granite_hybrid"], indirect=True)
def test_a_death_and_a_swap_change_no_token(saved: Any) -> None:
    prompts = [[*range(10, 30), extra] for extra in range(4, 8)]
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with pageant.LLM(saved.path, **SETTINGS, **ALONE) as llm:
        right = tokens_of(llm.generate(prompts, params))
    with pageant.LLM(saved.path, placement="auto", **SETTINGS) as llm:
        a_death_and_a_swap_change_no_token(llm, prompts, params, right)


@pytest.mark.parametrize("setting", ["tensor_parallel", "pipeline_parallel"])
def test_groups_are_refused_by_name(saved: Any, setting: str) -> None:
    with pytest.raises(PageantError, match="recurrent layers are not shared out in this version; expected 1"):
        pageant.LLM(saved.path, placement="one", **SETTINGS, **{setting: 2})
