"""Prompts of embeddings: transformers' `inputs_embeds` is the oracle, whatever happens to a request on its way."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch

import pageant
from pageant.actors.client.prompt_types import EmbedsPrompt

GREEDY = pageant.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
EMBEDS = {"enable_prompt_embeds": True, "placement": "one", "progress": False, "threads": 1}


def expected(checkpoint, rows, max_tokens=12):
    """Return transformers' greedy continuation of these rows [N, hidden_size]."""
    with torch.inference_mode():
        rows = torch.as_tensor(rows)[None]
        mask = torch.ones(rows.shape[:2], dtype=torch.int64)
        found = checkpoint.model.generate(
            inputs_embeds=rows,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return found[0].tolist()


def noise(checkpoint, count, seed):
    """Rows that no token has, as large as those of tokens."""
    weight = checkpoint.model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, weight.shape[1], generator=generator) * weight.std().item()


def embeds(rows, **more):
    return EmbedsPrompt(prompt_embeds=rows, **more)


def ids(outputs):
    return [one.token_ids for output in outputs for one in output.outputs]


@pytest.fixture(scope="module")
def llm(checkpoint):
    """An engine of 48 blocks, so that long prompts have to give way, and small steps, so that they are cut."""
    settings = {"num_blocks": 48, "max_num_batched_tokens": 40, "max_num_seqs": 4, "block_size": 8}
    with pageant.LLM(checkpoint.path, **settings, **EMBEDS) as llm:
        yield llm


@pytest.mark.parametrize(
    "family", ["llama", "gemma3", "cohere2, which transformers runs", "mistral with a window"]
)
def test_embeddings_are_what_transformers_takes_as_inputs_embeds(make_checkpoint, family):
    checkpoint = make_checkpoint(family)
    prompts = [noise(checkpoint, count, count) for count in (1, 5, 40)]
    with pageant.LLM(checkpoint.path, num_blocks=128, **EMBEDS) as llm:
        outputs = llm.generate([embeds(rows) for rows in prompts], GREEDY)
    assert ids(outputs) == [expected(checkpoint, rows) for rows in prompts]
    assert [output.prompt_token_ids for output in outputs] == [[0] * len(rows) for rows in prompts]
    assert all(output.prompt is None for output in outputs)


def test_the_embeddings_of_tokens_go_on_as_the_tokens_do(llm, checkpoint, mixed_prompts):
    weight = checkpoint.model.get_input_embeddings().weight.detach()
    given = [embeds(weight[torch.tensor(prompt)]) for prompt in mixed_prompts[:6]]
    both = [one for pair in zip(given, mixed_prompts[:6], strict=True) for one in pair]  # in one batch
    found = ids(llm.generate(both, GREEDY))
    assert found[::2] == found[1::2] == [checkpoint.greedy(prompt, 12) for prompt in mixed_prompts[:6]]


def test_equal_rows_share_cached_prefixes_and_others_never_do(llm, checkpoint):
    shared, tails = noise(checkpoint, 32, 1), [noise(checkpoint, 9, seed) for seed in (2, 3)]
    nearly = shared.clone()
    nearly[3, 5] += 1e-4  # what a rounded or partial name would not see
    first, second = (torch.cat([shared, tail]) for tail in tails)
    other = torch.cat([nearly, tails[0]])

    def cached(rows, **more):
        (output,) = llm.generate(embeds(rows, **more), GREEDY)
        assert output.outputs[0].token_ids == expected(checkpoint, rows)
        return output.num_cached_tokens

    assert cached(first) == 0
    assert cached(second) == 32
    assert cached(first) == 40
    assert cached(other) == 3 and cached(other) == 40  # up to the row that differs, and then its own
    assert cached(first, cache_salt="mine") == 0
    (of_tokens,) = llm.generate([[0] * 41], GREEDY)  # what such prompts are counted as
    assert of_tokens.num_cached_tokens == 0


def test_samples_and_logprobs_and_penalties_are_those_of_the_rows(llm, checkpoint):
    rows = noise(checkpoint, 21, 4)
    params = {"max_tokens": 8, "ignore_eos": True, "seed": 7, "n": 3, "temperature": 0.9}
    outputs = [llm.generate(embeds(rows), pageant.SamplingParams(**params))[0] for _ in range(2)]
    assert ids(outputs[:1]) == ids(outputs[1:]) and len({*map(tuple, ids(outputs[:1]))}) > 1
    scored = pageant.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2)
    (output,) = llm.generate(embeds(rows), scored)
    with torch.inference_mode():
        logits = checkpoint.model(inputs_embeds=rows[None]).logits[0, -1]
    right = torch.log_softmax(logits.float(), -1)
    first = output.outputs[0].logprobs[0]
    assert all(first[token].logprob == pytest.approx(right[token].item(), abs=1e-4) for token in first)
    # Token 0, which the prompt is counted as, is no token of it. The next likely one would win if it were penalised.
    behind = max(
        (one for one in range(1, len(logits)) if logits[one] < logits[0]), key=lambda one: logits[one]
    )
    penalised = pageant.SamplingParams(
        temperature=0,
        max_tokens=1,
        ignore_eos=True,
        repetition_penalty=100.0,
        allowed_token_ids=[0, behind],
    )
    (output,) = llm.generate(embeds(rows), penalised)
    assert output.outputs[0].token_ids == [0]


def test_a_preempted_prompt_is_computed_again_from_its_rows(llm, checkpoint):
    before = llm.scheduler_statistics().counters["preemptions"]
    prompts = [noise(checkpoint, 70, seed) for seed in range(10, 14)]
    params = pageant.SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    outputs = llm.generate([embeds(rows) for rows in prompts], params)
    assert ids(outputs) == [expected(checkpoint, rows, 60) for rows in prompts]
    assert llm.scheduler_statistics().counters["preemptions"] > before


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_drafts_change_nothing(checkpoint, method):
    speculation = {"method": "ngram", "tokens": 3}
    if method == "draft":
        speculation = {"method": "draft", "model": str(checkpoint.path), "adaptive": False, "tokens": 2}
    prompts = [noise(checkpoint, count, count) for count in (3, 30)]
    params = pageant.SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with pageant.LLM(checkpoint.path, num_blocks=128, speculation=speculation, **EMBEDS) as llm:
        outputs = llm.generate([embeds(rows) for rows in prompts], params)
        counters = llm.scheduler_statistics().counters
    assert ids(outputs) == [expected(checkpoint, rows, 40) for rows in prompts]
    assert sum(count for name, count in counters.items() if "draft" in name) > 0


async def test_rows_survive_the_deaths_of_those_that_have_them(checkpoint):
    """Every actor has a process of its own, so that rows cross between them, encoded."""
    rows = noise(checkpoint, 50, 20)
    params = pageant.SamplingParams(temperature=0, max_tokens=180, ignore_eos=True)
    suspicion = {"heartbeat_seconds": 0.5, "suspicion_seconds": 3.0}
    settings = {
        "placement": "each",
        "num_blocks": 64,
        "threads": 1,
        "enable_prompt_embeds": True,
        **suspicion,
    }
    async with pageant.Engine(checkpoint.path, **settings) as engine:
        pids = {node.node: node.pid for node in await engine.statistics()}
        victims = [pids[name] for name in ("executor", "blocks", "scheduler")]
        async for piece in engine.generate(embeds(rows.numpy()), params):
            output = piece
            if victims:
                os.kill(victims.pop(0), signal.SIGKILL)
                if len(victims) == 1:  # the last two at once
                    os.kill(victims.pop(0), signal.SIGKILL)
        assert (await engine.scheduler_statistics()).counters["resumed"] == 1
    assert output.outputs[0].token_ids == expected(checkpoint, rows, 180)


WRONG = [
    (torch.zeros(3, 7), "shape [3, 7]; expected [tokens, 64]"),
    (torch.zeros(64), "shape [64]"),
    (torch.zeros(0, 64), "shape [0, 64]"),
    (torch.zeros(2, 3, 64), "shape [2, 3, 64]"),
    (torch.zeros(3, 64, dtype=torch.float64), "of float64; expected float32, float16 or bfloat16"),
    (torch.zeros(3, 64, dtype=torch.int64), "of int64"),
    (np.full((3, 64), np.nan, np.float32), "prompt_embeds[0][0] is nan"),
    (np.full((3, 64), np.inf, np.float32), "prompt_embeds[0][0] is inf"),
    (np.full((3, 64), 1e30, np.float32), "is 1e+30; expected a number between"),
    (torch.zeros(256, 64), "the prompt has 256 tokens; max_model_len is 256"),
    ([[0.0] * 64], "prompt_embeds is a list"),
    ("abc", "prompt_embeds is a str"),
]


@pytest.mark.parametrize(("value", "message"), WRONG, ids=[message[:24] for _, message in WRONG])
def test_what_cannot_be_computed_with_is_refused_with_what_was_found(llm, value, message):
    with pytest.raises(pageant.BadRequest) as refused:
        llm.generate([embeds(value)], GREEDY)
    assert message in str(refused.value) and str(refused.value).startswith("prompts[0]: ")


def test_what_needs_the_prompts_tokens_is_refused_by_name(llm, checkpoint):
    prompt = embeds(noise(checkpoint, 3, 1))
    for name in ("prompt_logprobs", "thinking_token_budget"):
        with pytest.raises(pageant.BadRequest) as refused:
            llm.generate(prompt, pageant.SamplingParams(**{name: 1}))
        assert refused.value.parameter == name
    with pytest.raises(pageant.BadRequest, match="beams are of tokens"):
        llm.beam_search([prompt], pageant.BeamSearchParams(beam_width=2, max_tokens=2))
    with pytest.raises(pageant.BadRequest, match="'prompt_token_ids' beside prompt_embeds"):
        llm.generate({**prompt, "prompt_token_ids": [1]}, GREEDY)


def test_the_largest_values_that_are_taken_do_no_harm_to_others(llm, checkpoint):
    wild = torch.full((20, 64), 10_000.0) * torch.tensor([1.0, -1.0]).repeat(32)
    calm = noise(checkpoint, 20, 30)
    right = expected(checkpoint, calm)
    for _ in range(3):
        outputs = llm.generate([embeds(wild), embeds(calm)], GREEDY)
        assert outputs[1].outputs[0].token_ids == right


def test_other_widths_and_cut_prompts(llm, checkpoint):
    rows = noise(checkpoint, 30, 31)
    for dtype in (torch.float16, torch.bfloat16):
        narrow = rows.to(dtype)
        (output,) = llm.generate(embeds(narrow[None]), GREEDY)
        assert output.outputs[0].token_ids == expected(checkpoint, narrow.float())
    cut = pageant.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, truncate_prompt_tokens=7)
    (output,) = llm.generate(embeds(rows.numpy()), cut)
    assert output.outputs[0].token_ids == expected(checkpoint, rows[-7:])
    assert rows.numpy().flags.writeable


def test_they_are_refused_where_nobody_asked_for_them(checkpoint):
    with (
        pageant.LLM(checkpoint.path, num_blocks=32, placement="one", progress=False) as llm,
        pytest.raises(pageant.BadRequest, match="not served with enable_prompt_embeds"),
    ):
        llm.generate(embeds(noise(checkpoint, 3, 1)), GREEDY)
    with pytest.raises(pageant.ArgumentError, match="enable_prompt_embeds"):
        pageant.LLM(checkpoint.path, enable_prompt_embeds="yes", placement="one", progress=False)
