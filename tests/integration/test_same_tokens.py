"""Greedy outputs equal transformers' `generate`: batched, chunked, with prefix hits, and after preemption."""

from collections.abc import Callable

import pytest

import pageant
from pageant.protocol.scheduling import SchedulerStatistics

MAX_TOKENS = 24
GREEDY = pageant.SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)


def _generate(checkpoint, prompts, **settings) -> tuple[list[list[int]], SchedulerStatistics]:
    with pageant.LLM(checkpoint.path, placement="one", progress=False, threads=1, **settings) as llm:
        outputs = llm.generate(prompts, GREEDY)
        statistics = llm.scheduler_statistics()
        pool = llm.pool_statistics()
    assert pool.blocks_held == 0, "every block is given back"
    return [output.outputs[0].token_ids for output in outputs], statistics


@pytest.mark.parametrize("family", ["llama", "mistral", "mistral with a window", "qwen2", "qwen3", "gemma3"])
def test_every_family_generates_what_transformers_generates(make_checkpoint: Callable, mixed_prompts, family):
    checkpoint = make_checkpoint(family)
    expected = [checkpoint.greedy(prompt, MAX_TOKENS) for prompt in mixed_prompts]
    found, statistics = _generate(
        checkpoint, mixed_prompts, dtype="float32", max_num_batched_tokens=40, max_num_seqs=8, num_blocks=256
    )
    assert found == expected
    assert statistics.counters["chunk_splits"] > 0, "some prompt was computed in chunks"
    assert statistics.counters["tokens_cached"] > 0, "some prefix was found in the cache"


def test_preempted_requests_generate_what_they_would_have(checkpoint, mixed_prompts):
    expected = [checkpoint.greedy(prompt, MAX_TOKENS) for prompt in mixed_prompts]
    found, statistics = _generate(checkpoint, mixed_prompts, max_model_len=160, num_blocks=11, max_num_seqs=8)
    assert found == expected
    assert statistics.counters["preemptions"] > 0, "memory ran out"


@pytest.mark.parametrize("short_step_seconds", [0.0, 60.0], ids=["one step ahead", "two steps ahead"])
def test_with_a_window_in_every_layer_few_blocks_do_and_the_tokens_are_the_same(
    make_checkpoint: Callable, short_step_seconds
):
    checkpoint = make_checkpoint("mistral with a window")
    prompts = [list(range(4, 4 + length)) for length in (130, 9, 40, 130)]
    params = pageant.SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    settings = {"block_size": 8, "num_blocks": 32, "max_num_batched_tokens": 32, "dtype": "float32"}
    settings["short_step_seconds"] = short_step_seconds
    with pageant.LLM(checkpoint.path, placement="one", progress=False, threads=1, **settings) as llm:
        found = llm.generate(prompts, params)
        scheduler, pool = llm.scheduler_statistics(), llm.pool_statistics()
    assert [output.outputs[0].token_ids for output in found] == [
        checkpoint.greedy(prompt, 100) for prompt in prompts
    ]
    assert pool.blocks_given_back > 40
    assert pool.blocks_held == 0
    assert scheduler.counters["preemptions"] == 0, "whole, the four would take 98 blocks"


@pytest.mark.parametrize(
    ("family", "group_layers"),
    [("gemma3", True), ("gemma3", False), ("cohere2, which transformers runs", True)],
)
@pytest.mark.parametrize("short_step_seconds", [0.0, 60.0], ids=["one step ahead", "two steps ahead"])
def test_layers_with_a_window_give_back_though_others_have_none(
    make_checkpoint: Callable, family, group_layers, short_step_seconds
):
    """Give three of four layers a window, so that there are four groups."""
    checkpoint = make_checkpoint(family)
    prompts = [[4 + (7 * at) % 200 for at in range(length)] for length in (130, 9, 40, 130)]
    prompts[3] = prompts[3][:100] + [5] * 30
    params = pageant.SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    settings = {"block_size": 8, "max_num_batched_tokens": 32, "dtype": "float32", "max_model_len": 232}
    settings |= {"num_blocks": 150 if group_layers else 98, "group_layers": group_layers}
    settings["short_step_seconds"] = short_step_seconds
    with pageant.LLM(checkpoint.path, placement="one", progress=False, threads=1, **settings) as llm:
        found = llm.generate(prompts, params)
        scheduler, pool = llm.scheduler_statistics(), llm.pool_statistics()
    assert [output.outputs[0].token_ids for output in found] == [
        checkpoint.greedy(prompt, 100) for prompt in prompts
    ]
    assert (pool.blocks_given_back > 150) == group_layers
    assert pool.blocks_held == 0
    if group_layers:
        assert scheduler.counters["preemptions"] == 0, "whole, they would take 4 * 98 blocks"


def test_without_prefix_caching_nothing_is_cached_and_the_tokens_are_the_same(checkpoint, mixed_prompts):
    expected = [checkpoint.greedy(prompt, MAX_TOKENS) for prompt in mixed_prompts]
    found, statistics = _generate(checkpoint, mixed_prompts, enable_prefix_caching=False, num_blocks=128)
    assert found == expected
    assert statistics.counters["tokens_cached"] == 0


def test_a_second_run_of_a_prompt_reports_its_cached_tokens(checkpoint):
    prompt = list(range(4, 74))
    with pageant.LLM(checkpoint.path, placement="one", progress=False, threads=1, num_blocks=64) as llm:
        first, second = (llm.generate(prompt, GREEDY)[0] for _ in range(2))
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == 69, (
        "four full blocks of 16, a copy of the fifth, all but the last token"
    )
    assert first.outputs[0].token_ids == second.outputs[0].token_ids


@pytest.mark.parametrize("kernels", ["reference", "auto"])
def test_what_is_shared_of_a_block_is_copied_and_the_tokens_are_the_same(checkpoint, kernels):
    first = list(range(4, 74))
    answer = checkpoint.greedy(first, MAX_TOKENS)
    # All of it, up to within a block, to within the answer, beyond it, and less than a block.
    others = [
        first,
        [*first[:40], 90, 91],
        [*first, *answer[:3], 90],
        [*first, *answer, 90, 91],
        [*first[:9], 90],
    ]
    cached = [69, 40, 73, 70 + MAX_TOKENS - 1, 9]
    settings = {"kernels": kernels, "dtype": "float32", "num_blocks": 64}
    with pageant.LLM(checkpoint.path, placement="one", progress=False, threads=1, **settings) as llm:
        llm.generate(first, GREEDY)
        together = llm.generate(others, GREEDY)
        pool = llm.pool_statistics()
    assert [output.outputs[0].token_ids for output in together] == [
        checkpoint.greedy(prompt, MAX_TOKENS) for prompt in others
    ]
    assert [output.num_cached_tokens for output in together] == cached
    assert pool.tokens_copied == sum(count % 16 for count in cached)


def test_plans_of_several_steps_say_what_single_steps_say(checkpoint, mixed_prompts):
    """Some answers end by themselves, within a plan; and their rows and blocks are others' then."""
    params = [
        pageant.SamplingParams(
            temperature=0.9, seed=index, max_tokens=20 + 7 * index, min_tokens=5 * (index % 3)
        )
        for index in range(len(mixed_prompts))
    ]
    answers = []
    for steps in (1, 8):
        settings = {"placement": "one", "progress": False, "threads": 1, "num_blocks": 256, "max_num_seqs": 4}
        with pageant.LLM(checkpoint.path, max_steps_per_plan=steps, **settings) as llm:
            found = [llm.generate(prompt, one)[0] for prompt, one in zip(mixed_prompts, params, strict=True)]
            found += llm.generate(mixed_prompts, params)
            counters, pool = llm.scheduler_statistics().counters, llm.pool_statistics()
        assert pool.blocks_held == 0
        assert bool(counters["steps_together"]) == (steps > 1)
        answers.append([(one.outputs[0].token_ids, one.outputs[0].finish_reason) for one in found])
    assert answers[0] == answers[1]
    assert {reason for _, reason in answers[0]} == {"stop", "length"}
