"""Thoughts of a model end after exactly so many tokens, whatever happens to the request; it goes on as if it had ended
its thoughts itself."""

from __future__ import annotations

import re

import pytest

import pageant
from pageant import SamplingParams
from pageant.protocol.errors import BadRequest

BEGIN, END = "<think>", "</think>"
MARKS = {"reasoning_marks": (BEGIN, END)}
ASKED = {"temperature": 0.0, "ignore_eos": True}
LENGTH = 40


@pytest.fixture(scope="module")
def ids(llm):
    """A text's tokens, which are its bytes."""
    return lambda text: llm.generate([text], SamplingParams(max_tokens=1))[0].prompt_token_ids


@pytest.fixture(scope="module")
def right(checkpoint, ids):
    """Return what transformers says: thoughts, the mark that ends them, and what follows on that."""

    def tokens(prompt, budget, length=LENGTH):
        thoughts = checkpoint.greedy(prompt, budget) if budget else []
        begun = [*thoughts, *ids(END)]
        assert END.encode() not in bytes(token - 4 for token in thoughts)
        return [*begun, *checkpoint.greedy([*prompt, *begun], length - len(begun))]

    return tokens


@pytest.mark.parametrize("budget", [0, 1, 9, 25])
def test_thoughts_end_after_exactly_so_many_tokens(llm, ids, right, budget):
    params = SamplingParams(**ASKED, max_tokens=LENGTH, thinking_token_budget=budget)
    prompt = ids(f"Why? {BEGIN}")
    (output,) = llm.generate([f"Why? {BEGIN}"], params, **MARKS)
    assert output.outputs[0].token_ids == right(prompt, budget)
    (output,) = llm.generate([prompt], params, **MARKS)  # which has no text
    assert output.outputs[0].token_ids == right(prompt, budget)


def test_a_bound_that_is_not_reached_changes_nothing(llm, checkpoint, ids):
    for prompt, budget in (
        (f"Why? {BEGIN}", LENGTH),
        (f"Why? {BEGIN}", -1),
        ("Why?", 0),
        (f"{BEGIN}{END}", 0),
    ):
        params = SamplingParams(**ASKED, max_tokens=LENGTH, thinking_token_budget=budget)
        (output,) = llm.generate([prompt], params, **MARKS)
        assert output.outputs[0].token_ids == checkpoint.greedy(ids(prompt), LENGTH)


def test_it_holds_with_speculation_samples_penalties_bad_words_and_too_little_memory(checkpoint, ids, right):
    settings = {"placement": "one", "threads": 1, "progress": False, "block_size": 4, "dtype": "float32"}
    crowded = {"num_blocks": 60, "max_num_seqs": 8, "max_num_batched_tokens": 24}
    more = [
        *({}, {"temperature": 1.0, "n": 2}, {"repetition_penalty": 1.3, "min_tokens": 30}),
        *({"logprobs": 2}, {"bad_words": ["</think>", "k>"]}, {"allowed_token_ids": [*range(4, 260)]}),
    ]
    prompts = [f"{'Why? ' * 4}{index % 3}{BEGIN}" for index in range(12)]
    params = [
        SamplingParams(
            **ASKED
            | {"seed": index, "max_tokens": LENGTH, "thinking_token_budget": 3 + index}
            | more[index % len(more)]
        )
        for index in range(12)
    ]
    found = []
    for speculation in (None, {"method": "ngram", "adaptive": False}):
        with pageant.LLM(checkpoint.path, speculation=speculation, **settings, **crowded) as llm:
            found.append(llm.generate(prompts, params, **MARKS))
            counters = llm.scheduler_statistics().counters
        assert counters["preemptions"] > 0 and counters["tokens_cached"] > 0
    assert counters["drafts_accepted"] > 0
    for one, other in zip(*found, strict=True):
        assert [each.token_ids for each in one.outputs] == [each.token_ids for each in other.outputs]
    end = ids(END)
    for index, output in enumerate(found[0]):
        for sample in output.outputs:
            assert sample.token_ids[3 + index : 3 + index + len(end)] == end
    for index in (0, 6):
        assert found[0][index].outputs[0].token_ids == right(ids(prompts[index]), 3 + index)


def test_a_grammar_goes_on_after_thoughts_that_were_cut_short(llm):
    asked = {"regex": "[ab]{3}", "reasoning_begin": BEGIN, "reasoning_end": END}
    params = SamplingParams(max_tokens=LENGTH, seed=1, thinking_token_budget=5, structured_outputs=asked)
    for prompt in (f"Why? {BEGIN}", "Why?"):
        (output,) = llm.generate([prompt], params, **MARKS)
        assert re.fullmatch(rf"(<think>)?.*{END}[ab]{{3}}|[ab]{{3}}", output.outputs[0].text, re.DOTALL)
        if prompt.endswith(BEGIN):
            assert len(output.outputs[0].token_ids) <= 5 + len(END) + 4


def test_a_model_that_marks_no_thoughts_has_no_bound_for_them(llm, ids):
    params = SamplingParams(max_tokens=4, thinking_token_budget=5)
    with pytest.raises(BadRequest, match="does not mark what it thinks") as raised:
        llm.generate(["Why?"], params)
    assert raised.value.parameter == "thinking_token_budget"
    for marks in ("ab", (BEGIN,), (BEGIN, ""), (1, 2)):
        with pytest.raises(BadRequest, match="reasoning_marks"):
            llm.generate(["Why?"], params, reasoning_marks=marks)
    with pytest.raises(BadRequest, match="thinking_token_budget is -2"):
        SamplingParams(thinking_token_budget=-2)
