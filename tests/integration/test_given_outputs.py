"""Outputs that requests give to have them scored, against transformers; with everything else that draws tokens."""

from __future__ import annotations

import pytest
import torch

import pageant
from pageant import BadRequest, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)


def check(checkpoint, output, given):
    """A sample is what was given, and scored as transformers scores it."""
    sample = output.outputs[0]
    assert sample.token_ids == given and sample.finish_reason == "length"
    ids = [*output.prompt_token_ids, *given]
    with torch.inference_mode():
        right = checkpoint.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    for row, token, place in zip(
        right[len(output.prompt_token_ids) - 1 :], given, sample.logprobs, strict=False
    ):
        assert place[token].logprob == pytest.approx(row[token].item(), abs=2e-4)
        assert place[token].rank == 1 + int((row > row[token]).sum())


@pytest.mark.parametrize("speculation", [None, {"method": "ngram", "adaptive": False}])
def test_given_tokens_come_and_are_scored_beside_drafts_preemptions_and_others(
    checkpoint, mixed_prompts, speculation
):
    prompts = [*mixed_prompts, *mixed_prompts][:12]
    ends = sorted(checkpoint.eos_token_ids) if hasattr(checkpoint, "eos_token_ids") else [0]
    outputs = [[(7 * place + index) % 200 for place in range(12)] for index in range(12)]
    outputs[0][3] = outputs[2][0] = ends[0]
    params = [
        GREEDY
        if index % 4 == 1
        else SamplingParams(
            trace_decode_token_ids=given, logprobs=2, temperature=0.5 * (index % 3), seed=index
        )
        for index, given in enumerate(outputs)
    ]
    settings = {"threads": 1, "progress": False, "block_size": 4, "num_blocks": 80, "dtype": "float32"}
    with pageant.LLM(checkpoint.path, placement="one", speculation=speculation, **settings) as llm:
        found = llm.generate(prompts, params)
        counters = llm.scheduler_statistics().counters
        alone = llm.generate([prompts[0]], SamplingParams(trace_decode_token_ids=outputs[1], stop="x"))
        with pytest.raises(BadRequest, match=r"trace_decode_token_ids\[1\] is 1000000"):
            llm.generate([[5]], SamplingParams(trace_decode_token_ids=[1, 10**6]))
    assert counters["preemptions"] > 0 and alone[0].outputs[0].token_ids == outputs[1]
    for index, (output, given) in enumerate(zip(found, outputs, strict=True)):
        if index % 4 == 1:
            assert output.outputs[0].token_ids == checkpoint.greedy(prompts[index], 10)
        else:
            check(checkpoint, output, given)


@pytest.mark.parametrize(
    "more,says",
    [
        ({"trace_decode_token_ids": []}, "trace_decode_token_ids is empty"),
        ({"trace_decode_token_ids": [-1]}, r"trace_decode_token_ids\[0\] is -1"),
        ({"n": 2}, "n is 2; expected 1"),
        ({"bad_words": ["x"]}, "bad_words is given beside trace_decode_token_ids"),
        ({"thinking_token_budget": 3}, "thinking_token_budget is given beside"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs is given beside"),
    ],
)
def test_what_would_draw_is_refused_beside_it(more, says):
    with pytest.raises(BadRequest, match=says):
        SamplingParams(**{"trace_decode_token_ids": [1, 2]} | more)
