"""Parameters as users hold them, and as a request takes them."""

import copy
import pickle

import pytest

from pageant.actors.client.sampling_params import FROZEN, SamplingParams
from pageant.protocol import sampling
from pageant.protocol.errors import BadRequest
from pageant.protocol.structured_outputs import StructuredOutputsParams


def test_the_names_and_defaults_are_those_of_a_request():
    assert set(SamplingParams.__struct_fields__) >= FROZEN
    assert SamplingParams().frozen() == sampling.SamplingParams()


def test_the_order_is_vllms(vllm_fields):
    theirs = list(vllm_fields)
    assert list(SamplingParams.__struct_fields__[: len(theirs)]) == theirs


def test_defaults_are_vllms(vllm_fields):
    made = SamplingParams()
    for name, default in vllm_fields.items():
        if name in ("stop", "stop_token_ids", "bad_words"):
            assert getattr(made, name) == []
        elif name != "output_kind":
            assert getattr(made, name) == default, name


@pytest.fixture
def vllm_fields():
    import json
    from pathlib import Path

    names = Path(__file__).parents[2] / "data" / "vllm-0.32-names.json"
    return json.loads(names.read_text())["SamplingParams"]


def test_parameters_by_position_and_by_name():
    made = SamplingParams(2, 0.5, 0.25, temperature=0.7)
    assert (made.n, made.presence_penalty, made.frequency_penalty, made.temperature) == (2, 0.5, 0.25, 0.7)


def test_what_is_changed_counts_when_a_request_begins():
    params = SamplingParams(max_tokens=4)
    params.max_tokens, params.stop = 9, "end"
    params.stop_token_ids.append(3)
    frozen = params.frozen()
    assert (frozen.max_tokens, frozen.stop, frozen.stop_token_ids) == (9, ("end",), (3,))
    params.stop_token_ids.append(4)
    assert frozen.stop_token_ids == (3,)
    params.temperature = -1
    with pytest.raises(BadRequest, match="temperature is -1"):
        params.frozen()


def test_a_clone_shares_nothing():
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, extra_args={"key": 1})
    other = params.clone()
    assert other == params
    other.stop.append("b")
    other.logit_bias[1] = 3.0
    assert (params.stop, params.logit_bias) == (["a"], {1: 2.0})
    assert pickle.loads(pickle.dumps(params)) == copy.copy(params) == params


def test_none_is_what_is_not_given_where_it_is_optional():
    made = SamplingParams.from_optional(
        n=None, temperature=None, top_p=None, max_tokens=None, logit_bias={"7": 500}
    )
    assert made == SamplingParams(max_tokens=None, logit_bias={7: 100.0})
    with pytest.raises(BadRequest, match="logit_bias has 'x'"):
        SamplingParams.from_optional(logit_bias={"x": 1})


def test_an_older_name_of_structured_outputs():
    asked = StructuredOutputsParams(choice=["yes", "no"])
    assert SamplingParams(guided_decoding=asked) == SamplingParams(structured_outputs=asked)


def test_true_asks_for_one_log_probability():
    assert SamplingParams(logprobs=True, prompt_logprobs=True).frozen().logprobs == 1


@pytest.mark.parametrize(
    "given,message",
    [
        ({"temprature": 1}, "temprature is no parameter of SamplingParams; did you mean 'temperature'"),
        ({"watermarking": True}, "watermarking: found True; expected False: texts bear no watermark"),
        ({"flat_logprobs": True}, "flat_logprobs: found True"),
        ({"repetition_detection": {"min_count": 2}}, "repetition_detection: found"),
        ({"prompt_logprob_token_ids": [1]}, "prompt_logprob_token_ids: found"),
        ({"top_p": 0}, "top_p is 0"),
    ],
)
def test_what_is_not_there_is_refused_with_the_reason(given, message):
    with pytest.raises(ValueError) as error:
        SamplingParams(**given)
    assert message in str(error.value)
