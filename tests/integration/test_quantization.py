"""Quantised weights by the option that every face has."""

from __future__ import annotations

import logging

import pytest

import pageant
from pageant.actors.runtime.topology import TopologyError
from pageant.scripts.engine_options import DEMO_MODEL


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_quantised_model_answers_and_says_that_it_is_quantised(
    quantization: str, caplog: pytest.LogCaptureFixture
) -> None:
    params = pageant.SamplingParams(temperature=0, max_tokens=24)
    question = [{"role": "user", "content": "What is a list?"}]
    with (
        caplog.at_level(logging.INFO, "pageant.executor"),
        pageant.LLM(DEMO_MODEL, placement="one", quantization=quantization, progress=False) as llm,
    ):
        (output,) = llm.chat(question, params)
    assert "list" in output.outputs[0].text.lower()
    assert f"with {quantization} weights" in caplog.text


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_deterministic_model_says_the_same_however_its_prompt_is_cut(quantization: str) -> None:
    prompts = [
        {"prompt_token_ids": [index % 500 + 1 for index in range(start, 3 * start)]} for start in (70, 130)
    ]
    params = pageant.SamplingParams(temperature=1, seed=7, max_tokens=24, ignore_eos=True, logprobs=1)
    found = []
    for tokens in (2048, 33):
        with pageant.LLM(
            DEMO_MODEL,
            placement="one",
            dtype="bfloat16",
            quantization=quantization,
            deterministic=True,
            max_num_batched_tokens=tokens,
            enable_prefix_caching=False,
            progress=False,
        ) as llm:
            found.append([output.outputs[0] for output in llm.generate(prompts, params)])
    whole, cut = found
    for one, other in zip(whole, cut, strict=True):
        assert (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)


def test_an_unknown_quantization_is_refused_before_anything_starts() -> None:
    with pytest.raises(TopologyError, match=r"quantization.*int3|int3.*quantization"):
        pageant.LLM(DEMO_MODEL, quantization="int3", progress=False)  # type: ignore[typeddict-item]
