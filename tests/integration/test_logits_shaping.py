"""Penalties, biases and allowed tokens on a real model: its tokens are those of a slow loop over transformers.

The loop computes the whole sequence anew for each token and shapes its logits over the whole vocabulary.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

import pageant
from pageant import SamplingParams
from pageant.kernels.sampling import gumbel_noise

MAX_TOKENS = 24
END = 0
SHAPES = [
    {},
    {"presence_penalty": 2.0},
    {"frequency_penalty": 0.9},
    {"presence_penalty": -1.5, "frequency_penalty": -1.0},
    {"repetition_penalty": 1.6},
    {"repetition_penalty": 0.7},
    {"logit_bias": {17: 6.0, 90: 5, 200: -100.0, 31: -3.5}},
    {"allowed_token_ids": [5, 9, 40, 77, 120, 9, 201]},
    {"logit_bias": {END: 60.0, 30: 55.0}, "min_tokens": 9, "stop_token_ids": [30], "ignore_eos": False},
    {"allowed_token_ids": [END, 8, 9, 60, 61, 62, 100], "min_tokens": 5, "ignore_eos": False},
    {
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.3,
        "logit_bias": {12: 8.0, 80: 9.0, 81: -9.0},
        "allowed_token_ids": list(range(8, 100)),
    },
]


def _shaped(logits, prompt, output, params):
    """Logits [V] as vLLM's documentation orders it, on all of the vocabulary."""
    logits = logits.clone()
    if params.allowed_token_ids is not None:
        others = torch.ones(len(logits), dtype=torch.bool)
        others[list(params.allowed_token_ids)] = False
        logits[others] = -torch.inf
    if len(output) < params.min_tokens:
        logits[[*([] if params.ignore_eos else [END]), *params.stop_token_ids]] = -torch.inf
    for token, bias in (params.logit_bias or {}).items():
        logits[token] += bias
    tokens = torch.tensor([[*prompt, *output]])
    logits = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(tokens, logits[None])[0]
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=len(logits))
    logits -= params.frequency_penalty * counts
    return logits - params.presence_penalty * (counts > 0)


def _slowly(model, prompt, params):
    """The right tokens of a request."""
    output = []
    ends = [*([] if params.ignore_eos else [END]), *params.stop_token_ids]
    while len(output) < params.max_tokens:
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *output]])).logits[0, -1]
        logits = _shaped(logits, prompt, output, params)
        if params.temperature > 0:
            seed, sample, position = torch.tensor([[params.seed], [0], [len(prompt) + len(output)]])
            logits = logits / params.temperature + gumbel_noise(seed, sample, position, len(logits))[0]
        output.append(int(logits.argmax()))
        if len(output) >= params.min_tokens and output[-1] in ends:
            break
    return output


def _requests(prompts, temperature):
    """Each prompt with parameters of its own, all in turn."""
    params = [
        SamplingParams(
            **(
                {"temperature": temperature, "seed": seed, "max_tokens": MAX_TOKENS, "ignore_eos": True}
                | shape
            )
        )
        for seed, shape in zip(range(2 * len(prompts)), itertools.cycle(SHAPES), strict=False)
    ]
    return [*prompts, *prompts[::-1]], params


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["greedy", "sampled"])
def requests(request, checkpoint, mixed_prompts):
    """Prompts, parameters, and the tokens that are right for them."""
    prompts, params = _requests(mixed_prompts, request.param)
    expected = [_slowly(checkpoint.model, *one) for one in zip(prompts, params, strict=True)]
    return prompts, params, expected


def _tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize(
    ("settings", "counter"),
    [
        ({"num_blocks": 256, "wire": "always"}, None),
        ({"num_blocks": 256, "max_num_batched_tokens": 40, "max_num_seqs": 8}, "chunk_splits"),
        ({"num_blocks": 11, "max_num_seqs": 8, "max_model_len": 160}, "preemptions"),
        ({"num_blocks": 256, "kernels": "reference"}, "tokens_cached"),
    ],
    ids=["wire", "chunked", "preempted", "reference"],
)
def test_every_row_of_a_mixed_batch_has_the_slow_loops_tokens(checkpoint, requests, settings, counter):
    prompts, params, expected = requests
    with pageant.LLM(checkpoint.path, placement="one", progress=False, threads=1, **settings) as llm:
        assert _tokens(llm.generate(prompts, params)) == expected
        counters = llm.scheduler_statistics().counters
    assert counter is None or counters[counter] > 0


def test_a_row_alone_has_the_same_tokens(llm, requests):
    for prompt, params, expected in zip(*requests, strict=True):
        assert _tokens(llm.generate(prompt, params)) == [expected]


def test_each_parameter_matters_here(checkpoint, requests):
    prompts, params, expected = requests
    changed = set()
    for index, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        plain = SamplingParams(
            temperature=one.temperature, seed=one.seed, max_tokens=MAX_TOKENS, ignore_eos=True
        )
        if index % len(SHAPES) and _slowly(checkpoint.model, prompt, plain) != expected[index]:
            changed.add(index % len(SHAPES))
    assert changed == set(range(1, len(SHAPES)))


def test_tokens_that_only_end_may_be_all_that_is_allowed(llm):
    output = llm.generate(
        "x", SamplingParams(temperature=1, allowed_token_ids=[END], min_tokens=4, max_tokens=9)
    )[0].outputs[0]
    assert (output.token_ids, output.finish_reason) == ([END] * 4, "stop")


@pytest.mark.parametrize("filters", [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.01}])
def test_the_filters_leave_only_allowed_tokens(llm, filters):
    params = [
        SamplingParams(temperature=3.0, seed=seed, allowed_token_ids=[30, 60, 90], ignore_eos=True, **filters)
        for seed in range(20)
    ]
    drawn = {token for tokens in _tokens(llm.generate(["x"] * 20, params)) for token in tokens}
    assert drawn <= {30, 60, 90} and len(drawn) > 1
