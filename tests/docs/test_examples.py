"""The worked examples: each keeps its rules, is found from YAML, and serves as the default cast does."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import pageant
from pageant.actors.client.cast import DEFAULT_CAST
from pageant.actors.runtime.resolving import resolve
from pageant.actors.runtime.topology import read
from pageant.scripts.conformance import run

EXAMPLES = Path(pageant.__file__).parent / "docs" / "examples"
TOPOLOGIES = ("shortest_first", "eviction", "simple_blocks")
SETTINGS = {
    "served": (),
    "model": "checkpoint",
    "max_model_len": 64,
    "vocab_size": 96,
    "eos_token_ids": (2,),
    "has_chat_template": False,
}


@pytest.fixture(autouse=True)
def examples_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).eval().save_pretrained(path)
    words = {f"w{index}": index for index in range(96)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2").save_pretrained(path)
    return path


def generate(checkpoint, topology=None):
    chance = random.Random(5)
    shared = [chance.randrange(3, 96) for _ in range(20)]
    prompts = [[*shared[: chance.randint(4, 20)], chance.randrange(3, 96)] for _ in range(14)]
    params = [
        pageant.SamplingParams(temperature=0.0, max_tokens=chance.randint(1, 16), ignore_eos=True)
        for _ in prompts
    ]
    with pageant.LLM(
        checkpoint,
        topology=topology,
        placement="one",
        dtype="float32",
        progress=False,
        threads=1,
        block_size=4,
        num_blocks=13,
        max_num_seqs=6,
        max_model_len=48,
    ) as llm:
        outputs = llm.generate(prompts, params)
        pool, scheduler = llm.pool_statistics(), llm.scheduler_statistics()
    assert pool.blocks_held == 0, "blocks are lost"
    return [output.outputs[0].token_ids for output in outputs], pool, scheduler


@pytest.fixture(scope="module")
def right(checkpoint):
    tokens, _, _ = generate(checkpoint)
    return tokens


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("policy", "shortest_first:ShortestFirst"),
        ("pool", "eviction:LeastFrequentlyUsed"),
        ("blocks", "eviction:FrequencyBlockManager"),
        ("blocks", "simple_blocks:SimpleBlocks"),
    ],
)
def test_each_example_keeps_the_rules_of_its_conversation(kind, name):
    report = run(kind, name)
    assert report.passed, report


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_each_topology_names_its_example(name):
    topology = read(EXAMPLES / f"{name}.yaml")
    resolved = resolve(topology, DEFAULT_CAST, SETTINGS)
    described = [(actor.cls, actor.options.decode()) for actor in resolved.actors]
    assert any(f"{name}:" in cls or f'"{name}:' in options for cls, options in described)
    assert topology.model is None, "the model is the user's to give"


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_each_example_serves_the_same_tokens_as_the_default_cast(name, checkpoint, right):
    tokens, pool, scheduler = generate(checkpoint, EXAMPLES / f"{name}.yaml")
    assert tokens == right
    assert scheduler.counters["preemptions"] > 0 or scheduler.counters["admissions_refused"] > 0
    assert (pool.tokens_hit > 0) == (name != "simple_blocks")


def test_the_policy_is_under_forty_lines():
    assert len((EXAMPLES / "shortest_first.py").read_text().splitlines()) < 40


def test_the_simple_block_manager_knows_only_the_protocol_and_the_runtime():
    source = (EXAMPLES / "simple_blocks.py").read_text().splitlines()
    imports = [line.split()[1] for line in source if line.startswith("from pageant")]
    assert imports
    assert all(name.startswith(("pageant.protocol.", "pageant.actors.runtime")) for name in imports)


def test_the_least_frequently_used_block_is_given_up_first():
    from eviction import LeastFrequentlyUsed

    pool = LeastFrequentlyUsed(2)
    popular, rare = pool.take(2)
    pool.name([popular, rare], [b"popular", b"rare"])
    pool.free([popular])
    assert pool.match([b"popular"]) == [popular]
    pool.free([popular])
    pool.free([rare])  # more recently used, but only once
    assert pool.take(1) == [rare]
    assert pool.match([b"popular"]) == [popular]


def test_the_shortest_goes_first_but_nobody_waits_for_ever():
    from shortest_first import ShortestFirst

    from pageant.actors.scheduler.request import ScheduledRequest
    from pageant.protocol.arrays import int32

    def asked(arrival, length, max_tokens):
        return ScheduledRequest(
            request_id="",
            frontend="",
            serial=arrival,
            arrival=arrival,
            prompt=int32([1] * length),
            params=pageant.SamplingParams(max_tokens=max_tokens),
            end_tokens=frozenset(),
        )

    order = ShortestFirst().order
    assert order(asked(2, 3, 4)) < order(asked(1, 30, 40))
    assert order(asked(1, 30, 40)) < order(asked(1000, 3, 4))
    assert order(asked(2, 3, 4)) < order(asked(1, 3, None))


def test_the_guide_shows_the_policy_and_its_topology_as_they_are():
    guide = (EXAMPLES.parent / "writing-a-policy.md").read_text()
    code, topology = (re.search(rf"```{kind}\n(.*?)```", guide, re.DOTALL)[1] for kind in ("python", "yaml"))
    assert code in (EXAMPLES / "shortest_first.py").read_text()
    assert topology == (EXAMPLES / "shortest_first.yaml").read_text()
    assert len([line for line in code.splitlines() if line.strip()]) <= 20


def test_the_guide_shows_the_drafter_as_it_is():
    guide = (EXAMPLES.parent / "writing-a-drafter.md").read_text()
    code = re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1]
    assert code in (EXAMPLES / "same_word.py").read_text()
    assert len([line for line in code.splitlines() if line.strip()]) <= 30


def test_the_drafter_of_the_guide_changes_no_token():
    params = pageant.SamplingParams(
        temperature=0, max_tokens=40, ignore_eos=True, allowed_token_ids=[260, 261]
    )
    outputs = []
    for speculation in (None, {"method": "same_word:SameWord", "adaptive": False, "patience": 60.0}):
        with pageant.LLM(
            **dict(
                model=EXAMPLES.parent.parent / "models" / "demo",
                placement="one",
                threads=1,
                dtype="float32",
                num_blocks=64,
                progress=False,
            ),
            speculation=speculation,
        ) as llm:
            outputs.append(llm.generate(["What is a lambda?"] * 2, params)[1].outputs[0].token_ids)
            counters = llm.scheduler_statistics().counters
    assert outputs[0] == outputs[1]
    assert counters["drafts_accepted"] > 10
