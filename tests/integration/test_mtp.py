"""Drafts of a checkpoint's own layer (multi-token prediction) change no token, whatever else happens to a request."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

import pageant
from pageant import SamplingParams
from pageant.actors.blocks.costs import MoveCosts
from pageant.protocol.errors import PageantError
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.samples.mtp_model import MTPModel, train
from tests.integration.test_kv_8_bits import (
    ALONE,
    CROWDED,
    SETTINGS,
    a_death_and_a_swap_change_no_token,
    behind_growing,
    crowd,
    tokens_of,
)
from tests.models.ready.test_fp8 import written
from tests.mtp_models import drafting_well

MTP = {"method": "mtp", "tokens": 3, "adaptive": False}
PARAMS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9},
    {"repetition_penalty": 1.3},
    {"temperature": 0.7, "top_k": 5, "presence_penalty": 0.4},
    {"stop": ["a", "e"], "max_tokens": 60},
    {"logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 0.9, "n": 3},
    {"structured_outputs": StructuredOutputsParams(regex="(A|The) [a-z ]{3,30}[.]")},
)


@pytest.fixture(scope="module")
def drafting(
    make_checkpoint: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Any]:
    """Return a function that saves a family with a layer that drafts, once."""
    made: dict[str, Any] = {}

    def make(family: str) -> Any:
        if family not in made:
            checkpoint, path = make_checkpoint(family), tmp_path_factory.mktemp("drafting") / family
            shutil.copytree(checkpoint.path, path)
            mtp = drafting_well(checkpoint.model)
            mtp.save(path)
            made[family] = dataclasses.replace(checkpoint, path=path, model=mtp.model)
        return made[family]

    return make


@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3", "qwen3_next"])
def test_greedy_tokens_are_those_of_transformers(drafting: Callable[[str], Any], family: str) -> None:
    saved = drafting(family)
    prompts = [[5, 80, 33], [7 + 3 * place % 200 for place in range(50)], [9, 10, 11] * 6]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    settings = {"placement": "one", "progress": False, "threads": 1, "num_blocks": 300}
    with pageant.LLM(saved.path, **settings, speculation=MTP) as llm:
        found = tokens_of(llm.generate(prompts, params))
        counters = llm.scheduler_statistics().counters
    assert found == [saved.greedy(prompt, 40) for prompt in prompts]
    assert counters["drafts_proposed"] > counters["drafts_accepted"] > 0.05 * counters["drafts_proposed"]


def test_drafts_of_a_block_fp8_checkpoint_change_no_token(
    drafting: Callable[[str], Any], tmp_path: Path
) -> None:
    """DeepSeek V3 and R1 are published so: the layer that drafts comes in blocks of FP8 too, but for `eh_proj`."""
    saved = drafting("deepseek_v3")
    written(saved, tmp_path, "block", ("eh_proj",))
    prompts = [[5, 80, 33], [7 + 3 * place % 200 for place in range(50)], [9, 10, 11] * 6]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    said = []
    for speculation in (None, MTP):
        settings = {"placement": "one", "progress": False, "threads": 1, "num_blocks": 300}
        with pageant.LLM(tmp_path, **settings, skip_tokenizer_init=True, speculation=speculation) as llm:
            said.append(tokens_of(llm.generate(prompts, params)))
            counters = llm.scheduler_statistics().counters
    assert said[0] == said[1]
    assert counters["drafts_accepted"] > 0.05 * counters["drafts_proposed"]


def test_rows_of_adapters_have_the_tokens_that_they_have_without_drafts(
    drafting: Callable[[str], Any], save_adapter: Callable[..., Any]
) -> None:
    """The layer that drafts knows no adapter: fewer of its drafts are right, and no token is another."""
    saved = drafting("glm4_moe")
    adapters = {"own": save_adapter(saved.model, ("q_proj", "o_proj"), seed=0, size=0.3).path}
    prompts = [[5, 80, 33], [9, 10, 11] * 6]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    said = []
    for speculation in (None, MTP):
        settings = {"placement": "one", "progress": False, "threads": 1, "num_blocks": 300}
        with pageant.LLM(saved.path, **settings, adapters=adapters, speculation=speculation) as llm:
            said.append([tokens_of(llm.generate(prompts, params, adapter=name)) for name in (None, "own")])
            proposed = llm.scheduler_statistics().counters.get("drafts_proposed", 0)
    assert said[0] == said[1] and said[0][0] != said[0][1]
    assert proposed


@pytest.mark.parametrize(
    ("family", "num_blocks", "num_requests"), [("glm4_moe", 84, 24), ("qwen3_next", 100, 48)]
)
def test_chunks_hits_preemptions_and_tiers_change_no_token(
    drafting: Callable[[str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    num_blocks: int,
    num_requests: int,
) -> None:
    monkeypatch.setattr(MoveCosts, "move_pays", lambda self, tokens, *ways: True)
    saved = drafting(family)
    prompts, params = (some[:num_requests] for some in crowd(saved.vocab_size))
    prompts, params = behind_growing(prompts, params)
    with pageant.LLM(saved.path, **SETTINGS, **ALONE) as llm:
        alone = tokens_of(llm.generate(prompts, params))
    tiers = {"host_memory": "256KiB", "disk_space": "4MiB", "disk_path": str(tmp_path)}
    settings = {**SETTINGS, **CROWDED, **tiers, "num_blocks": num_blocks, "speculation": MTP}
    with pageant.LLM(saved.path, **settings) as llm:
        outputs = llm.generate(prompts, params)
        counters, pool = llm.scheduler_statistics().counters, llm.pool_statistics()
    assert tokens_of(outputs) == alone
    happened = {
        "drafts that were right": counters["drafts_accepted"],
        "drafts that were wrong": counters["drafts_proposed"] - counters["drafts_accepted"],
        "chunks": counters["chunk_splits"],
        "preemptions": counters["preemptions"],
        "prefix hits": sum(output.num_cached_tokens > 0 for output in outputs),
        "blocks restored": pool.tiers[0].blocks_restored,
    }
    assert {name: count for name, count in happened.items() if not count} == {}


@pytest.mark.parametrize("family", ["glm4_moe", "qwen3_next"])
def test_whatever_is_asked_for_is_as_without_drafts(drafting: Callable[[str], Any], family: str) -> None:
    saved = drafting(family)
    params = [
        SamplingParams(**{"temperature": 0.0, "max_tokens": 30, "seed": index} | one)
        for index, one in enumerate(PARAMS)
    ]
    found = []
    for speculation in (None, MTP, {**MTP, "adaptive": True}):
        with pageant.LLM(
            saved.path, placement="one", num_blocks=900, speculation=speculation, **SETTINGS
        ) as llm:
            outputs = llm.generate(["A list is", "The set"] * (len(params) // 2), params)
        found.append(
            [
                (one.token_ids, one.text, one.finish_reason, one.stop_reason)
                for output in outputs
                for one in output.outputs
            ]
        )
    assert found[1] == found[0] == found[2]


def test_a_death_and_a_swap_change_no_token_of_a_drafting_model(drafting: Callable[[str], Any]) -> None:
    saved = drafting("glm4_moe")
    prompts = [[*range(10, 30), extra] for extra in range(4, 10)]
    params = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
    with pageant.LLM(saved.path, **SETTINGS, **ALONE) as llm:
        right = tokens_of(llm.generate(prompts, params))
    with pageant.LLM(saved.path, **SETTINGS, placement="each", num_blocks=200, speculation=MTP) as llm:
        a_death_and_a_swap_change_no_token(llm, prompts, params, right)
        assert llm.scheduler_statistics().counters["drafts_accepted"] > 0


def test_keys_and_values_of_the_layer_are_in_the_budget(drafting: Callable[[str], Any]) -> None:
    saved, counts = drafting("glm4_moe"), []
    layer_bytes = 2 * 2 * 16 * SETTINGS["block_size"] * 4
    for speculation in (None, MTP):
        with pageant.LLM(
            saved.path,
            placement="one",
            kv_cache_memory=300 * 6 * layer_bytes,
            speculation=speculation,
            **SETTINGS,
        ) as llm:
            counts.append(llm.pool_statistics().num_blocks)
    assert counts == [300 * 6 // 2, 300 * 6 // 3]


@pytest.mark.parametrize(
    ("family", "settings", "found"),
    [
        ("llama", {}, "LlamaForCausalLM, of which no layer that drafts .MTP. is known here"),
        (
            "cohere2, which transformers runs",
            {},
            "heads need the hidden states of a model with an architecture",
        ),
    ],
)
def test_what_drafts_of_the_layer_do_not_go_with_is_refused_by_name(
    make_checkpoint: Callable[[str], Any], family: str, settings: dict[str, Any], found: str
) -> None:
    path = DEMO_MODEL if family == "demo" else make_checkpoint(family).path
    with pytest.raises(PageantError, match=found):
        pageant.LLM(path, placement="one", speculation=MTP, **SETTINGS, **settings)


WORDS = 12
VOCAB = 48


def _sentences(seed: int) -> Iterator[torch.Tensor]:
    """Yield int64 [16, 48]: words of some tokens each, mostly in the order of a song, and now and then another."""
    chance = random.Random(seed)
    words = [[chance.randrange(VOCAB) for _ in range(chance.randint(3, 6))] for _ in range(WORDS)]
    while True:
        rows = []
        for _ in range(16):
            row, word = list[int](), chance.randrange(WORDS)
            while len(row) < 48:
                row += words[word]
                word = (word + 1) % WORDS if chance.random() < 0.8 else chance.randrange(WORDS)
            rows.append(row[:48])
        yield torch.tensor(rows)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt some sentences, and its layer with it, in seconds."""
    torch.manual_seed(3)
    config = Glm4MoeConfig(
        **dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, head_dim=16),
        **dict(num_attention_heads=4, num_key_value_heads=2, n_routed_experts=4, num_experts_per_tok=2),
        **dict(moe_intermediate_size=48, first_k_dense_replace=1, max_position_embeddings=256),
        **dict(bos_token_id=None, eos_token_id=None, pad_token_id=None),
    )
    mtp, path = MTPModel(Glm4MoeForCausalLM(config)), tmp_path_factory.mktemp("trained")
    train(mtp, _sentences(1), steps=60, rate=5e-3)
    mtp.save(path)
    words = Tokenizer(models.WordLevel({f"w{place}": place for place in range(VOCAB)}, unk_token="w0"))
    words.save(str(path / "tokenizer.json"))
    return path


@pytest.mark.parametrize(("drafts", "bar"), [(1, 1.8), (3, 2.6)])
def test_a_trained_layer_brings_tokens_and_changes_none(trained: Path, drafts: int, bar: float) -> None:
    prompts = next(_sentences(1))[:, :12].tolist()
    params = [
        SamplingParams(
            temperature=float(index % 2), seed=index, max_tokens=60, ignore_eos=True, detokenize=False
        )
        for index in range(len(prompts))
    ]
    answers = []
    for speculation in (None, {"method": "mtp", "tokens": drafts, "adaptive": False}):
        with pageant.LLM(
            trained, placement="one", num_blocks=600, speculation=speculation, **SETTINGS
        ) as llm:
            answers.append(tokens_of(llm.generate(prompts, params)))
            counters = llm.scheduler_statistics().counters
    assert answers[0] == answers[1]
    assert 1 + counters["drafts_accepted"] / counters["verifications"] >= bar
