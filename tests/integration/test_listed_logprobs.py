"""Log-probabilities of tokens that a request lists, against transformers; with everything else that draws tokens."""

from __future__ import annotations

import pytest
import torch

import pageant
from pageant import BadRequest, SamplingParams

GREEDY = {"temperature": 0, "max_tokens": 10, "ignore_eos": True}
LISTED = (200, 7, 101)


def check(checkpoint, output, listed):
    """All places of a sample against transformers' log-softmax."""
    sample = output.outputs[0]
    ids = [*output.prompt_token_ids, *sample.token_ids]
    with torch.inference_mode():
        right = checkpoint.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    right = right[len(output.prompt_token_ids) - 1 :]
    assert len(sample.logprobs) == len(sample.token_ids)
    for row, token, place in zip(right, sample.token_ids, sample.logprobs, strict=False):
        assert list(place) == [token, *(one for one in listed if one != token)]
        for each, found in place.items():
            assert found.logprob == pytest.approx(row[each].item(), abs=2e-4)
            assert (found.rank is None) == (each != token) and found.decoded_token is not None
    total = sum(place[token].logprob for place, token in zip(sample.logprobs, sample.token_ids, strict=True))
    assert sample.cumulative_logprob == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("speculation", [None, {"method": "ngram", "adaptive": False}])
def test_listed_tokens_have_their_log_probabilities_at_each_place(checkpoint, mixed_prompts, speculation):
    shaped = {"repetition_penalty": 1.4, "logit_bias": {17: 9.0}, "temperature": 0.8, "seed": 5}
    kinds = [
        {"logprob_token_ids": LISTED},
        {"logprob_token_ids": [3], "logprobs": 5},
        {"logprobs": 2},
        {"logprob_token_ids": [*range(0, 256, 3)], **shaped},
        {},
        {"logprob_token_ids": LISTED, "structured_outputs": {"regex": "[a-c]{10}"}},
        {"logprob_token_ids": LISTED, "prompt_logprobs": 1},
    ]
    params = [SamplingParams(**GREEDY | kinds[index % len(kinds)]) for index in range(14)]
    settings = {"threads": 1, "progress": False, "block_size": 4, "num_blocks": 80, "dtype": "float32"}
    with pageant.LLM(checkpoint.path, placement="one", speculation=speculation, **settings) as llm:
        outputs = llm.generate([*mixed_prompts, *mixed_prompts][:14], params)
        counters = llm.scheduler_statistics().counters
    assert counters["preemptions"] > 0
    for index, output in enumerate(outputs):
        asked = params[index]
        if asked.logprob_token_ids is not None:
            check(checkpoint, output, asked.logprob_token_ids)
        elif asked.logprobs is not None:
            assert all(place[token].rank for place in output.outputs[0].logprobs for token in place)
        else:
            assert output.outputs[0].logprobs is None
    assert outputs[6].prompt_logprobs[1]


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ([], "logprob_token_ids is empty"),
        ([-1], r"logprob_token_ids\[0\] is -1"),
        ([0, 10**6], r"logprob_token_ids\[1\] is 1000000; expected a token id from 0"),
        ([*range(5000)], "at most 4096"),
        (5, "logprob_token_ids"),
    ],
)
def test_tokens_that_cannot_be_listed_are_refused(llm, listed, says):
    with pytest.raises(BadRequest, match=says) as raised:
        llm.generate([[5, 6]], SamplingParams(logprob_token_ids=listed))
    assert raised.value.parameter.partition("[")[0] == "logprob_token_ids"
