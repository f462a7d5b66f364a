"""Groups of executors: several compute one model, and say what one says alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from pageant import LLM, RequestOutput, SamplingParams
from pageant.actors.client.resolved_models import resolve_topology
from pageant.actors.client.settings import topology_of
from pageant.protocol.errors import PageantError, TopologyError
from tests.close_logprobs import assert_close_logprobs
from tests.random_adapters import save_adapter

DEMO = str(Path(__file__).parents[2] / "models" / "demo")
SMALL: dict[str, Any] = {
    **{"dtype": "float32", "threads": 1, "num_blocks": 64, "max_model_len": 256, "kernels": "reference"},
    "enable_prefix_caching": True,
}
PROMPTS = ["Once upon a time", "The little dog", "A very long story about a girl named Lily who"]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
CORES = (("a", "0-1"), ("b", "1"))
ALL_KINDS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(temperature=0.9, top_k=40, top_p=0.95, min_p=0.02, seed=7, max_tokens=16),
    "penalised": SamplingParams(
        temperature=0.7,
        seed=3,
        max_tokens=16,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        logit_bias={11: 2.0},
    ),
    "several": SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=8),
    "logprobs": SamplingParams(temperature=0, max_tokens=6, logprobs=2, prompt_logprobs=1),
    "guided": SamplingParams(
        temperature=1.0, seed=2, max_tokens=24, structured_outputs={"regex": "[a-z]{4} [0-9]{3}"}
    ),
    "bounded": SamplingParams(temperature=0, max_tokens=12, min_tokens=8, bad_words=["the"], stop=["zz"]),
}


def said(llm: LLM, params: SamplingParams) -> list[RequestOutput]:
    """Return what comes of all prompts."""
    return llm.generate(PROMPTS, params, use_tqdm=False)


def assert_same(found: list[RequestOutput], right: list[RequestOutput]) -> None:
    """All but log-probabilities to the last bit: a group adds up its members' parts in another order."""
    for output, other in zip(found, right, strict=True):
        assert [one.token_ids for one in output.outputs] == [one.token_ids for one in other.outputs]
        assert_close_logprobs(output.prompt_logprobs, other.prompt_logprobs, 5e-4)
        for one, expected in zip(output.outputs, other.outputs, strict=True):
            assert_close_logprobs(one.logprobs, expected.logprobs, 5e-4)


@pytest.fixture(scope="module")
def alone() -> Iterator[dict[str, Any]]:
    with LLM(DEMO, placement="one", **SMALL) as llm:
        yield {name: said(llm, params) for name, params in ALL_KINDS.items()}


SHAPES: dict[str, dict[str, Any]] = {
    "two ranks": {"tensor_parallel": 2},
    "three stages": {"pipeline_parallel": 3},
    "two ranks in each of two stages": {
        **{"tensor_parallel": 2, "pipeline_parallel": 2, "pipeline_layers": [2, 3]},
        "collectives": "gloo",
    },
}


@pytest.fixture(scope="module", params=SHAPES)
def group(request: pytest.FixtureRequest) -> Iterator[LLM]:
    """Executors of a group, in one process."""
    with LLM(DEMO, placement="one", **SHAPES[request.param], **SMALL) as llm:
        yield llm


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_several_say_what_one_says(group: LLM, alone: dict[str, Any], kind: str) -> None:
    assert_same(said(group, ALL_KINDS[kind]), alone[kind])


def test_speculation_and_memory_below_the_device_say_what_one_says(alone: dict[str, Any]) -> None:
    """Drafts are verified by all members, and each moves its own shards of blocks: what leaves comes back the same."""
    settings = SMALL | {"num_blocks": 16, "max_model_len": 128, "host_memory": "64MiB"}
    drafts = {"method": "ngram", "tokens": 3, "adaptive": False}
    with LLM(DEMO, placement="one", tensor_parallel=2, wire="always", speculation=drafts, **settings) as llm:
        for kind in ("greedy", "sampled", "penalised", "greedy"):
            assert_same(said(llm, ALL_KINDS[kind]), alone[kind])
        long = [" ".join([word] * 60) for word in ("dog", "cat", "sun", "dog")]
        texts = [llm.generate([prompt], GREEDY, use_tqdm=False)[0].outputs[0].token_ids for prompt in long]
        assert texts[0] == texts[3], "its blocks had left, and came back"
        biased = SamplingParams(temperature=0, max_tokens=16, logit_bias={70: 100.0}, ignore_eos=True)
        (same,) = llm.generate(["So"], biased, use_tqdm=False)[0].outputs
        assert same.token_ids == [70] * 16
        counters, pool = llm.scheduler_statistics().counters, llm.pool_statistics()
        assert counters["drafts_accepted"] > 0
        assert sum(tier.blocks_saved for tier in pool.tiers) > 0


def test_adapters_and_segments_say_what_one_says(tmp_path: Path) -> None:
    """Adapters are shared out as the weights that they add to are. With as many segments, sums are the same bits."""
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype="float32")
    save_adapter(tmp_path, model, ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"), size=0.2)
    adapters = {"a": str(tmp_path)}
    with LLM(DEMO, placement="one", adapters=adapters, tensor_segments=4, **SMALL) as llm:
        expected = said(llm, GREEDY), adapted(llm)
    with LLM(DEMO, placement="one", adapters=adapters, tensor_segments=4, tensor_parallel=2, **SMALL) as llm:
        assert_same(said(llm, GREEDY), expected[0])
        assert adapted(llm) == expected[1]
    assert expected[1] != [output.outputs[0].token_ids for output in expected[0]], (
        "the adapter changes what is said"
    )


def adapted(llm: LLM) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, GREEDY, adapter="a", use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def resolved(**settings: Any) -> dict[str, tuple[str, str]]:
    """Return the node and the class of each executor of a topology."""
    actors = resolve_topology(topology_of(DEMO, None, settings)).actors
    return {
        plan.name: (plan.node, plan.cls.rpartition(":")[2])
        for plan in actors
        if plan.name.startswith("executor")
    }


def test_a_topology_places_a_leader_and_its_followers() -> None:
    nodes = {"front": {}, "a": {"process": True}, "b": {"process": True}}
    entry = {"nodes": ["b", "a"], "options": {"tensor_parallel": 2}}
    assert resolved(nodes=nodes, actors={"executor": entry}) == {
        "executor/0": ("b", "Executor"),
        "executor/1": ("a", "Rank"),
    }
    assert resolved(tensor_parallel_size=4) == {
        f"executor/{rank}": (f"executor-{rank}", "Rank" if rank else "Executor") for rank in range(4)
    }
    assert resolved() == {"executor/0": ("executor", "Executor")}, "alone as ever"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"tensor_parallel": 3},
            "tensor_parallel: found 3: 4 attention heads do not divide by 3; expected 1, 2 or 4",
        ),
        ({"tensor_parallel": 0}, "tensor_parallel: found 0; expected 1 to 64"),
        ({"tensor_parallel": "two"}, "tensor_parallel: Expected `int`"),
        (
            {"pipeline_parallel_size": 6},
            "pipeline_parallel_size: found 6: 5 layers are fewer than 6 stages; expected 1 to 5",
        ),
        ({"pipeline_parallel": -1}, "pipeline_parallel: found -1; expected 1 to 64"),
        (
            {"pipeline_parallel": 2, "pipeline_layers": [2, 2]},
            "pipeline_layers: found 2 + 2 are 4 layers; expected 5 together, which the model has",
        ),
        (
            {"pipeline_parallel": 2, "pipeline_layers": [5]},
            "pipeline_layers: found [5]; expected 2 numbers of at least 1, one for each of pipeline_parallel",
        ),
        (
            {"enable_expert_parallel": True},
            "enable_expert_parallel: found true: the model has no layers with experts; expected false",
        ),
        ({"tensor_parallel": 2, "tensor_segments": 3}, "tensor_segments: found 3"),
        ({"tensor_parallel": 2, "device": "cuda"}, "device: found 'cuda'"),
        (
            {
                "nodes": {"front": {}, "a": {"process": True}},
                "actors": {"executor": {"nodes": ["a"], "options": {"tensor_parallel": 2}}},
            },
            "actors.executor.nodes: found 1 nodes; expected 2, for tensor_parallel: 2",
        ),
        (
            {
                "nodes": {
                    "front": {},
                    **{name: {"process": True, "device": f"cpu:{cores}"} for name, cores in CORES},
                },
                "actors": {"executor": {"nodes": ["a", "b"], "options": {"tensor_parallel": 2}}},
            },
            "executor/1 computes on cpu:1 and executor/0 on cpu:0-1, which both have core 1; expected sets of cores "
            "that have none in common",
        ),
        (
            {"tensor_parallel": 2, "device": "cpu:0"},
            "executor/1 computes on cpu:0 and executor/0 on cpu:0, which both have core 0",
        ),
        (
            {
                "nodes": {"front": {}, "a": {"host": "10.0.0.7"}, "b": {"host": "10.0.0.8"}},
                "actors": {"executor": {"nodes": ["a", "b"], "options": {"tensor_parallel": 2}}},
            },
            "nodes.a.host: found '10.0.0.7', but the topology has no keys; other hosts need them",
        ),
        (
            {"actors": {"executor": {"count": 3, "options": {"tensor_parallel": 2}}}},
            "actors.executor.count: found 3; expected 2, for tensor_parallel: 2, or none",
        ),
        (
            {
                "tensor_parallel": 2,
                "actors": {"executor": {"class": "pageant.actors.executor.plain:PlainExecutor"}},
            },
            "actors.executor.class: PlainExecutor leads no group",
        ),
    ],
)
def test_what_no_group_can_be_is_refused_before_anything_loads(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises((PageantError, TopologyError)) as caught:
        LLM(DEMO, **settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("level", [1, 2])
def test_a_group_sleeps_and_wakes(group: LLM, alone: dict[str, Any], level: int) -> None:
    group.sleep(level)
    assert group.is_sleeping()
    group.wake_up()
    assert_same(said(group, GREEDY), alone["greedy"])


def test_a_group_begins_asleep_where_it_is_to(alone: dict[str, Any]) -> None:
    with LLM(DEMO, placement="one", tensor_parallel=2, start_asleep=True, **SMALL) as llm:
        assert llm.is_sleeping()
        llm.wake_up()
        assert_same(said(llm, GREEDY), alone["greedy"])


def test_one_and_two_executors_with_as_many_segments_have_the_same_bits():
    found = []
    for ranks in (1, 2):
        with LLM(DEMO, placement="one", tensor_parallel=ranks, tensor_segments=4, **SMALL) as llm:
            params = SamplingParams(max_tokens=12, temperature=0, logprobs=3)
            (output,) = llm.generate("Once upon a time", params)
            found.append((output.outputs[0].token_ids, output.outputs[0].logprobs))
    assert found[0] == found[1]
