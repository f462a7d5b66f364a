"""Log-probabilities, samples and what is forbidden, against transformers and plain formulas, in both wire modes."""

from __future__ import annotations

import asyncio

import pytest
import torch

import pageant
from pageant import BadRequest, RequestOutputKind, SamplingParams
from tests.close_logprobs import assert_close_logprobs

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module", params=["auto", "always"])
def llm(request, checkpoint):
    with pageant.LLM(
        checkpoint.path,
        progress=False,
        threads=1,
        num_blocks=256,
        wire=request.param,
        max_num_batched_tokens=40,  # prompts come in chunks
        max_logprobs=-1,
    ) as llm:
        yield llm


def right_logprobs(checkpoint, ids):
    """[len(ids), V]: of what follows each token."""
    with torch.inference_mode():
        return checkpoint.model(torch.tensor([ids])).logits[0].log_softmax(-1)


def check_place(place, right, token, count):
    """One token's entry against a row of transformers'."""
    assert next(iter(place)) == token
    top = right.topk(count).indices.tolist()
    assert set(place) == {token, *top}
    for each, found in place.items():
        assert found.logprob == pytest.approx(right[each].item(), abs=2e-4)
        above, below = right[each] + 4e-4, right[each] - 4e-4  # ties to within rounding
        assert int((right > above).sum()) < found.rank <= int((right >= below).sum())


@pytest.mark.parametrize("count", [0, 1, 5, -1])
def test_logprobs_are_those_of_the_raw_logits(llm, checkpoint, mixed_prompts, count):
    shaped = {
        "repetition_penalty": 1.4,
        "logit_bias": {17: 9.0},
        "temperature": 0.8,
        "seed": 5,
        "max_tokens": 6,
    }
    prompts = mixed_prompts[:6]
    params = [
        SamplingParams(**{**GREEDY, **(shaped if index % 2 else {})}, logprobs=None if index == 3 else count)
        for index in range(len(prompts))
    ]
    for prompt, one, output in zip(prompts, params, llm.generate(prompts, params), strict=True):
        (completion,) = output.outputs
        if one.logprobs is None:
            assert completion.logprobs is None and completion.cumulative_logprob is None
            continue
        right = right_logprobs(checkpoint, [*prompt, *completion.token_ids])[len(prompt) - 1 : -1]
        assert len(completion.logprobs) == len(completion.token_ids)
        for place, row, token in zip(completion.logprobs, right, completion.token_ids, strict=True):
            check_place(place, row, token, len(row) if count < 0 else count)
        total = sum(row[token].item() for row, token in zip(right, completion.token_ids, strict=True))
        assert completion.cumulative_logprob == pytest.approx(total, abs=2e-3)


@pytest.mark.parametrize("count", [0, 3, -1])
def test_prompt_logprobs_are_computed_though_the_prompt_is_cached(llm, checkpoint, mixed_prompts, count):
    prompts = [max(mixed_prompts, key=len), [7], mixed_prompts[1]]
    llm.generate(prompts, SamplingParams(**GREEDY))
    outputs = llm.generate(prompts, SamplingParams(**GREEDY, prompt_logprobs=count))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.num_cached_tokens == 0
        first, *others = output.prompt_logprobs
        assert first is None and len(others) == len(prompt) - 1
        right = right_logprobs(checkpoint, prompt)
        for place, row, token in zip(others, right[:-1], prompt[1:], strict=True):
            check_place(place, row, token, len(row) if count < 0 else count)
        assert output.outputs[0].token_ids == checkpoint.greedy(prompt, 12)


def test_prompt_logprobs_come_once_for_all_samples_and_for_a_request_that_is_preempted(
    checkpoint, mixed_prompts
):
    prompts = [prompt for prompt in mixed_prompts if len(prompt) > 30][:6]
    params = SamplingParams(
        temperature=0.9, seed=3, max_tokens=80, ignore_eos=True, n=2, prompt_logprobs=0, logprobs=1
    )
    with pageant.LLM(checkpoint.path, progress=False, threads=1, num_blocks=16) as llm:
        outputs = llm.generate(prompts, params)
        assert llm.scheduler_statistics().counters["preemptions"] > 0
    for prompt, output in zip(prompts, outputs, strict=True):
        right = right_logprobs(checkpoint, prompt)
        assert [
            place[token].logprob for place, token in zip(output.prompt_logprobs[1:], prompt[1:], strict=True)
        ] == (pytest.approx(right[torch.arange(len(prompt) - 1), prompt[1:]].tolist(), abs=2e-4))
        for completion in output.outputs:
            assert [next(iter(place)) for place in completion.logprobs] == completion.token_ids


def test_decoded_tokens_are_the_texts_of_tokens_by_themselves(llm):
    (output,) = llm.generate("Hello", SamplingParams(**GREEDY, logprobs=2, prompt_logprobs=1))
    assert [output.prompt_logprobs[1][ord_of(llm, "e")].decoded_token] == ["e"]
    for place in output.outputs[0].logprobs:
        assert all(isinstance(each.decoded_token, str) for each in place.values())
    (output,) = llm.generate("Hello", SamplingParams(**GREEDY, logprobs=2, detokenize=False))
    assert output.outputs[0].text == "" and len(output.outputs[0].token_ids) == 12
    assert all(each.decoded_token is None for place in output.outputs[0].logprobs for each in place.values())


def ord_of(llm, character):
    """A character's token."""
    (output,) = llm.generate(character, SamplingParams(temperature=0, max_tokens=1))
    return output.prompt_token_ids[0]


def test_logprobs_are_cut_with_the_text_at_a_stop_string(llm):
    (whole,) = llm.generate("Hello there", SamplingParams(**GREEDY, logprobs=0))
    text = whole.outputs[0].text
    (cut,) = llm.generate("Hello there", SamplingParams(**GREEDY, logprobs=0, stop=[text[4:6]]))
    assert cut.outputs[0].finish_reason == "stop"
    assert cut.outputs[0].stop_reason == text[4:6]
    assert len(cut.outputs[0].logprobs) == len(cut.outputs[0].token_ids) < 12
    metrics = cut.metrics
    assert metrics.first_token_time > 0 and metrics.decode_time > 0


def test_samples_share_the_prompt_and_the_first_is_that_of_a_single_one(llm, mixed_prompts):
    prompt = max(mixed_prompts, key=len)
    params = {"temperature": 1.0, "seed": 11, "max_tokens": 10, "ignore_eos": True, "cache_salt": None}
    del params["cache_salt"]
    hit = llm.pool_statistics().tokens_hit
    (many,) = llm.generate([prompt], SamplingParams(**params, n=4), cache_salt="samples")
    shared = len(prompt) - 1
    found = llm.pool_statistics().tokens_hit - hit
    assert 0 < 3 * (shared - shared % 16) <= found <= 3 * shared, "those of a later step get more by copies"
    assert [completion.index for completion in many.outputs] == [0, 1, 2, 3]
    assert len({tuple(completion.token_ids) for completion in many.outputs}) == 4
    (one,) = llm.generate([prompt], SamplingParams(**params))
    assert many.outputs[0].token_ids == one.outputs[0].token_ids
    (again,) = llm.generate([prompt], SamplingParams(**params, n=4))
    assert [c.token_ids for c in again.outputs] == [c.token_ids for c in many.outputs]


def test_best_of_returns_those_of_the_highest_cumulative_logprob(llm, checkpoint, mixed_prompts):
    params = {"temperature": 1.3, "seed": 2, "max_tokens": 7, "ignore_eos": True}
    prompt = mixed_prompts[2]
    (everything,) = llm.generate([prompt], SamplingParams(**params, n=6))
    totals = {}
    for completion in everything.outputs:
        right = right_logprobs(checkpoint, [*prompt, *completion.token_ids])[len(prompt) - 1 : -1]
        total = right[torch.arange(7), completion.token_ids].sum().item()
        totals[tuple(completion.token_ids)] = total
    best = sorted(totals, key=totals.__getitem__, reverse=True)
    (chosen,) = llm.generate([prompt], SamplingParams(**params, n=2, best_of=6))
    assert [tuple(completion.token_ids) for completion in chosen.outputs] == best[:2]
    assert [completion.index for completion in chosen.outputs] == [0, 1]
    assert all(completion.logprobs is None for completion in chosen.outputs)


def test_samples_are_distributed_as_the_model_says(llm, checkpoint, mixed_prompts):
    """Chi-squared over the samples of one request: their noise differs by `sample` alone."""
    prompt, count = mixed_prompts[4], 1000
    (output,) = llm.generate([prompt], SamplingParams(temperature=2.0, seed=9, max_tokens=1, n=count))
    drawn = torch.bincount(
        torch.tensor([completion.token_ids[0] for completion in output.outputs]),
        minlength=checkpoint.vocab_size,
    )
    expected = (right_logprobs(checkpoint, prompt)[-1] / 2.0).softmax(-1) * count
    large = expected >= 5
    seen = torch.cat([drawn[large], drawn[~large].sum()[None]]).double()
    wanted = torch.cat([expected[large], expected[~large].sum()[None]]).double()
    statistic = ((seen - wanted) ** 2 / wanted).sum().item()
    degrees = len(seen) - 1
    assert degrees > 5
    assert statistic < degrees + 4 * (2 * degrees) ** 0.5  # four standard deviations


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_bad_words_are_never_completed(llm, checkpoint, temperature):
    from transformers import NoBadWordsLogitsProcessor

    params = {"temperature": temperature, "seed": 1, "max_tokens": 24, "ignore_eos": True}
    (free,) = llm.generate("Hello", SamplingParams(**params, detokenize=True))
    text = free.outputs[0].text
    printable = [
        text[i : i + 2]
        for i in range(len(text) - 1)
        if text[i : i + 2].isascii() and text[i : i + 2].strip() == text[i : i + 2]
    ]
    words = [text[3], *printable[:3]] if text[3].isascii() else printable[:3]
    assert words
    (kept,) = llm.generate("Hello", SamplingParams(**params, bad_words=words))
    assert kept.outputs[0].token_ids != free.outputs[0].token_ids
    assert not any(word in kept.outputs[0].text for word in words)
    if temperature == 0:
        ids = [[ord_of(llm, character) for character in word] for word in words]
        banned = NoBadWordsLogitsProcessor(ids, eos_token_id=[checkpoint.vocab_size + 1])
        output = []
        for _ in range(24):
            right = right_logprobs(checkpoint, [*kept.prompt_token_ids, *output])[-1]
            output.append(int(banned(torch.tensor([output], dtype=torch.int64), right[None])[0].argmax()))
        assert kept.outputs[0].token_ids == output


def test_a_truncated_prompt_is_its_end(llm, mixed_prompts):
    prompt = max(mixed_prompts, key=len)
    (cut, whole) = llm.generate(
        [prompt, prompt[-9:]], [SamplingParams(**GREEDY, truncate_prompt_tokens=9), SamplingParams(**GREEDY)]
    )
    assert cut.prompt_token_ids == prompt[-9:]
    assert cut.outputs[0].token_ids == whole.outputs[0].token_ids
    (long,) = llm.generate([prompt * 9], SamplingParams(**GREEDY, truncate_prompt_tokens=-1))
    assert len(long.prompt_token_ids) == 256 - 12 and len(long.outputs[0].token_ids) == 12
    (text,) = llm.generate("Hello there", SamplingParams(**GREEDY, truncate_prompt_tokens=2))
    assert len(text.prompt_token_ids) == 2 and text.prompt == "Hello there"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n": 1025}, "n is 1025"),
        ({"n": 0}, "n is 0"),
        ({"n": 2, "temperature": 0}, "temperature 0"),
        ({"n": 3, "best_of": 2}, "best_of is 2, which is less than n"),
        ({"best_of": 2000}, "best_of is 2000"),
        ({"logprobs": -2}, "logprobs is -2"),
        ({"prompt_logprobs": 2**40}, "prompt_logprobs is"),
        ({"logprobs": "many"}, "logprobs is 'many'"),
        ({"bad_words": ["a"] * 257}, "at most 256"),
        ({"bad_words": [""]}, r"bad_words\[0\] has 0 characters"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0"),
        ({"detokenize": False, "stop": "x"}, "detokenize"),
        ({"output_kind": 1}, "output_kind is 1"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(params, message):
    with pytest.raises(BadRequest, match=message):
        SamplingParams(**params)


def test_more_logprobs_than_the_engine_tells_are_refused(checkpoint):
    with pageant.LLM(checkpoint.path, progress=False, threads=1, num_blocks=64, max_logprobs=4) as llm:
        for name in ("logprobs", "prompt_logprobs"):
            for count in (5, -1):
                with pytest.raises(BadRequest, match=f"{name} is {count}; at most 4"):
                    llm.generate("Hello", SamplingParams(**{name: count}))
        assert llm.scheduler_statistics().counters["submitted"] == 0


async def _outputs(engine, params):
    return [output async for output in engine.generate("Hello there", params)]


@pytest.mark.parametrize("wire", ["auto", "always"])
def test_output_kinds(checkpoint, wire):
    async def main():
        params = {"temperature": 0.9, "seed": 4, "max_tokens": 20, "ignore_eos": True, "n": 3, "logprobs": 1}
        async with pageant.Engine(checkpoint.path, threads=1, num_blocks=64, wire=wire) as engine:
            kinds = {
                kind: await _outputs(engine, SamplingParams(**params, output_kind=kind))
                for kind in RequestOutputKind
            }
        (final,) = kinds[RequestOutputKind.FINAL_ONLY]
        assert final.finished and final.metrics.arrival_time > 1e9
        cumulative = kinds[RequestOutputKind.CUMULATIVE]
        assert len(cumulative) > 3 and all(len(output.outputs) == 3 for output in cumulative)
        assert [c.token_ids for c in cumulative[-1].outputs] == [c.token_ids for c in final.outputs]
        for one, other in zip(cumulative[-1].outputs, final.outputs, strict=True):
            assert_close_logprobs(one.logprobs, other.logprobs)
        joined = {index: ([], "", []) for index in range(3)}
        for output in kinds[RequestOutputKind.DELTA]:
            for completion in output.outputs:
                tokens, text, logprobs = joined[completion.index]
                joined[completion.index] = (
                    tokens + completion.token_ids,
                    text + completion.text,
                    logprobs + completion.logprobs,
                )
        assert [(*joined[c.index][:2],) for c in final.outputs] == [
            (c.token_ids, c.text) for c in final.outputs
        ]
        for completion in final.outputs:
            assert_close_logprobs(joined[completion.index][2], completion.logprobs)

    asyncio.run(main())


def test_a_deadline_ends_a_request_and_leaves_what_it_has(llm, checkpoint):
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    with pytest.raises(pageant.DeadlineExceeded, match="passed before it could be submitted"):
        llm.generate("Hello", params, deadline=1e-6)
    many = SamplingParams(n=8, max_tokens=200, ignore_eos=True)
    # 102,400 tokens, some 20 rows at a time, of requests so few that all are submitted in time
    outputs = llm.generate(["Hello"] * 64, many, deadline=3.0)
    aborted = [output for output in outputs if output.outputs[0].finish_reason == "abort"]
    assert aborted and all(output.finished and "deadline" in output.error for output in aborted)
    for bad in (
        {"deadline": 0},
        {"deadline": float("nan")},
        {"priority": 1.5},
        {"cache_salt": 3},
        {"tenant": "x" * 257},
        {"extra_keys": "adapter"},
        {"extra_keys": ["adapter", 3]},
        {"extra_keys": ["x"] * 65},
    ):
        with pytest.raises(BadRequest, match=next(iter(bad))):
            llm.generate("Hello", params, **bad)


def test_a_salt_keeps_prefixes_apart(llm, mixed_prompts):
    prompt = max(mixed_prompts, key=len)[::-1]
    params = SamplingParams(**GREEDY)
    cached = [
        llm.generate([prompt], params, cache_salt=salt)[0].num_cached_tokens
        for salt in ("a", "b", "a", None, "b")
    ]
    assert cached[0] == cached[1] == cached[3] == 0 and cached[2] == cached[4] > 0


def test_extra_keys_keep_prefixes_apart(llm, mixed_prompts):
    prompt = max(mixed_prompts, key=len)[::-1]
    params = SamplingParams(**GREEDY)
    cached = [
        llm.generate([prompt], params, cache_salt="keys", extra_keys=keys)[0].num_cached_tokens
        for keys in (["adapter"], ["adapter", "image"], ("adapter",), [], ["adapter", "image"])
    ]
    assert cached[0] == cached[1] == cached[3] == 0 and cached[2] == cached[4] > 0


def test_metrics_add_up(llm, mixed_prompts):
    for output in llm.generate(mixed_prompts[:4], SamplingParams(**GREEDY)):
        metrics = output.metrics
        assert min(metrics.queue_time, metrics.prefill_time, metrics.decode_time) >= 0
        assert metrics.decode_time > 0 and metrics.prefill_time > 0
        assert metrics.first_token_time >= metrics.prefill_time
        assert metrics.num_cached_tokens == output.num_cached_tokens
