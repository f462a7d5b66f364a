"""Sampling parameters, seen from outside."""

import pytest

from pageant import SamplingParams

PROMPT = list(range(10, 40))


def _one(llm, **params):
    return llm.generate(PROMPT, SamplingParams(**{"max_tokens": 32, **params}))[0].outputs[0]


def test_a_seed_gives_the_same_tokens_whatever_shares_the_batch(llm):
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=32, ignore_eos=True)
    alone = llm.generate(PROMPT, params)[0].outputs[0].token_ids
    others = [[(7 * i + j) % 200 + 4 for j in range(1 + 3 * i)] for i in range(12)]
    among = llm.generate(
        [*others[:6], PROMPT, *others[6:]],
        [SamplingParams(seed=i, max_tokens=20) for i in range(6)]
        + [params]
        + [SamplingParams(seed=i, max_tokens=9) for i in range(6)],
    )
    assert among[6].outputs[0].token_ids == alone


def test_other_seeds_give_other_tokens(llm):
    found = {tuple(_one(llm, temperature=1.0, seed=seed, ignore_eos=True).token_ids) for seed in range(8)}
    assert len(found) == 8


def test_requests_without_a_seed_differ_from_each_other(llm):
    params = SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True)
    outputs = llm.generate([PROMPT] * 6, params)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 6


def test_top_k_of_one_is_greedy(llm):
    greedy = _one(llm, temperature=0, ignore_eos=True)
    assert _one(llm, temperature=1.5, top_k=1, seed=1, ignore_eos=True).token_ids == greedy.token_ids


def test_max_tokens_ends_with_length(llm):
    output = _one(llm, temperature=0, max_tokens=7, ignore_eos=True)
    assert (len(output.token_ids), output.finish_reason, output.stop_reason) == (7, "length", None)


def test_without_max_tokens_the_context_is_the_limit(llm):
    output = _one(llm, temperature=0, max_tokens=None, ignore_eos=True)
    assert len(PROMPT) + len(output.token_ids) == 256
    assert output.finish_reason == "length"


def test_a_stop_token_ends_the_output_and_is_named(llm):
    plain = _one(llm, temperature=0, ignore_eos=True).token_ids
    stop = plain[5]
    output = _one(llm, temperature=0, ignore_eos=True, stop_token_ids=[stop])
    assert output.token_ids == plain[: plain.index(stop) + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)


def test_min_tokens_holds_stop_tokens_back(llm):
    plain = _one(llm, temperature=0, ignore_eos=True).token_ids
    output = _one(llm, temperature=0, ignore_eos=True, stop_token_ids=[plain[0]], min_tokens=10)
    assert plain[0] not in output.token_ids[:10]
    assert len(output.token_ids) >= 10


def test_a_stop_string_that_straddles_tokens_cuts_text_and_ids(llm):
    plain = _one(llm, temperature=0.9, seed=3, ignore_eos=True)
    visible = plain.text
    stop = visible[4:7]
    at = visible.index(stop)
    output = _one(llm, temperature=0.9, seed=3, ignore_eos=True, stop=stop)
    assert output.text == visible[:at]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    assert output.token_ids == plain.token_ids[: len(output.token_ids)]
    assert len(output.token_ids) < len(plain.token_ids)
    kept = _one(llm, temperature=0.9, seed=3, ignore_eos=True, stop=[stop], include_stop_str_in_output=True)
    assert kept.text == visible[: at + len(stop)]


def test_the_models_end_token_ends_the_output_unless_ignored(llm):
    # With this many seeds some draw the end token early.
    params = [SamplingParams(temperature=2.0, seed=seed, max_tokens=64) for seed in range(40)]
    ended = [o.outputs[0] for o in llm.generate([PROMPT] * 40, params)]
    stopped = [output for output in ended if output.finish_reason == "stop"]
    assert stopped, "some request drew the end token"
    for output in stopped:
        assert output.token_ids[-1] == 0
        assert output.stop_reason is None
        assert "<|end|>" not in output.text


@pytest.mark.parametrize("included", [False, True])
def test_the_token_that_ends_an_output_is_shown_when_asked_for(llm, included):
    shown = {"skip_special_tokens": False, "include_stop_str_in_output": included}
    params = [SamplingParams(temperature=2.0, seed=seed, max_tokens=64, **shown) for seed in range(40)]
    ended = [o.outputs[0] for o in llm.generate([PROMPT] * 40, params)]
    stopped = [output for output in ended if output.finish_reason == "stop"]
    assert stopped and all(output.text.endswith("<|end|>") == included for output in stopped)
