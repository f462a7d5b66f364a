"""SamplingParams: what is refused, and how it is said."""

from __future__ import annotations

import contextlib
import math
from types import MappingProxyType

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SEED_MAX, SEED_MIN, SamplingParams

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "values", "expectation"),
    [
        ("temperature", [-0.1, 100.5, NAN, INF, -INF, True, "1", None, [1]], "a number from 0 to 100"),
        ("top_p", [0, 0.0, -0.5, 1.01, NAN, INF, True, "0.5", None], "a number above 0 up to 1"),
        ("min_p", [-0.1, 1.5, NAN, INF, False, "0", None], "a number from 0 to 1"),
        ("presence_penalty", [-2.1, 2.1, NAN, INF, -INF, True, "1", None, 10**400], "a number from -2 to 2"),
        ("frequency_penalty", [-2.1, 2.1, NAN, INF, -INF, False, "1", None], "a number from -2 to 2"),
        ("repetition_penalty", [0, -1, 100.5, NAN, INF, True, "1", None], "a number above 0 up to 100"),
        ("logit_bias", [5, "5", [1, 2], True, ((1, 2.0),)], "a mapping from token ids to numbers"),
        ("allowed_token_ids", [5, "5", {1: 2}, 1.5, True], "a list"),
        ("top_k", [-2, 2**31, 1.5, 1.0, NAN, True, "5", None], "a whole number from -1 to 2147483647"),
        ("min_tokens", [-1, 2**31, 0.5, True, "1", None], "a whole number from 0 to 2147483647"),
        ("max_tokens", [0, -1, 2**31, 1.5, NAN, True, "16"], "a whole number from 1 to 2147483647"),
        (
            "seed",
            [SEED_MIN - 1, SEED_MAX + 1, 1.0, NAN, True, "7"],
            f"a whole number from {SEED_MIN} to {SEED_MAX}",
        ),
        ("stop", [5, ("a", 1), (b"a",), {"a": 1}, True], "a string or a list of strings"),
        ("stop_token_ids", [5, "5", {1: 2}, 1.5], "a list"),
        ("ignore_eos", [1, 0, "true", None, NAN], "true or false"),
        ("include_stop_str_in_output", [1, "yes", None], "true or false"),
        ("skip_special_tokens", [1, "no", None], "true or false"),
    ],
)
def test_a_bad_value_is_refused_with_what_was_found_and_what_is_expected(name, values, expectation):
    for value in values:
        with pytest.raises(BadRequest) as caught:
            SamplingParams(**{name: value})
        assert caught.value.parameter == name
        assert str(caught.value).startswith(name)
        assert str(value) in str(caught.value) and expectation in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "parameter", "text"),
    [
        ({"min_tokens": 17}, "min_tokens", "more than max_tokens (16)"),
        ({"stop": [""]}, "stop", "stop[0] has 0 characters"),
        ({"stop": ["a", "x" * 1025]}, "stop", "stop[1] has 1025 characters"),
        ({"stop": ["a"] * 65}, "stop", "65 strings; at most 64"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids", "1025 ids; at most 1024"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]", "stop_token_ids[1] is -1"),
        ({"stop_token_ids": [True]}, "stop_token_ids[0]", "is True"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids[0]", "is 1.5"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "empty; expected at least one"),
        ({"allowed_token_ids": [1] * 65_537}, "allowed_token_ids", "65537 ids; at most 65536"),
        ({"allowed_token_ids": [3, -1]}, "allowed_token_ids[1]", "allowed_token_ids[1] is -1"),
        ({"allowed_token_ids": [2**31]}, "allowed_token_ids[0]", "is 2147483648"),
        ({"allowed_token_ids": [3, True]}, "allowed_token_ids[1]", "is True"),
        ({"allowed_token_ids": [NAN]}, "allowed_token_ids[0]", "is nan"),
        ({"allowed_token_ids": ["a"]}, "allowed_token_ids[0]", "is 'a'"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias", "1025 entries; at most 1024"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias", "is -1; expected a whole number from 0"),
        ({"logit_bias": {"7": 1.0}}, "logit_bias", "is '7'; expected a whole number from 0"),
        ({"logit_bias": {True: 1.0}}, "logit_bias", "is True; expected a whole number from 0"),
        ({"logit_bias": {7: 100.5}}, "logit_bias[7]", "logit_bias[7] is 100.5; expected a number from -100"),
        ({"logit_bias": {7: NAN}}, "logit_bias[7]", "is nan; expected a number from -100 to 100"),
        ({"logit_bias": {7: -INF}}, "logit_bias[7]", "is -inf; expected a number from -100 to 100"),
        ({"logit_bias": {7: True}}, "logit_bias[7]", "is True; expected a number from -100 to 100"),
        ({"logit_bias": {7: None}}, "logit_bias[7]", "is None; expected a number from -100 to 100"),
    ],
)
def test_bounds_between_and_within_parameters_are_held(arguments, parameter, text):
    with pytest.raises(BadRequest) as caught:
        SamplingParams(**arguments)
    assert caught.value.parameter == parameter
    assert text in str(caught.value)


def test_an_unknown_parameter_is_refused_with_the_nearest_that_there_is():
    with pytest.raises(
        BadRequest, match=r"^temprature is no parameter of SamplingParams; did you mean 'temp"
    ) as caught:
        SamplingParams(temprature=0.5)
    assert caught.value.parameter == "temprature"
    with pytest.raises(
        BadRequest, match="beam_width is no parameter of SamplingParams; expected one of: allowed_"
    ):
        SamplingParams(beam_width=4)
    with pytest.raises(TypeError, match="positional"):
        SamplingParams(0.5)


def test_single_strings_lists_and_none_are_taken_where_tuples_are_meant():
    assert SamplingParams(stop="x").stop == ("x",)
    assert SamplingParams(stop=["x", "y"]).stop == ("x", "y")
    assert SamplingParams(stop=None, stop_token_ids=None) == SamplingParams()
    assert SamplingParams(stop_token_ids=[1]).stop_token_ids == (1,)
    assert SamplingParams(allowed_token_ids=[1]).allowed_token_ids == (1,)


def test_a_mapping_is_copied():
    bias = {5: 1.5}
    params = SamplingParams(logit_bias=bias)
    bias[6] = 9.0
    assert params.logit_bias == {5: 1.5}
    assert SamplingParams(logit_bias=MappingProxyType(bias)).logit_bias == bias


def test_limits_themselves_are_taken():
    SamplingParams(temperature=0, top_k=-1, top_p=1, min_p=1, seed=SEED_MAX, max_tokens=None, min_tokens=99)
    SamplingParams(presence_penalty=-2, frequency_penalty=2, repetition_penalty=100)
    SamplingParams(presence_penalty=2, frequency_penalty=-2, repetition_penalty=1e-300)
    SamplingParams(logit_bias={2**31 - 1: -100, **dict.fromkeys(range(1023), 100)})
    SamplingParams(allowed_token_ids=list(range(65_536)))


NUMBER = st.floats() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.text(max_size=3) | st.none()


ANYTHING = st.recursive(
    NUMBER | st.binary(max_size=2) | st.just(object()),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(SamplingParams.__struct_fields__), ANYTHING, max_size=3))
def test_any_value_is_taken_or_refused_in_words(fields):
    with contextlib.suppress(BadRequest):
        SamplingParams(**fields)


@given(st.dictionaries(st.sampled_from(SamplingParams.__struct_fields__), NUMBER, max_size=4))
def test_whatever_decodes_was_checked(fields):
    try:
        params = msgspec.convert(fields, SamplingParams)
    except msgspec.ValidationError:
        return
    assert 0 <= params.temperature <= 100 and 0 < params.top_p <= 1 and 0 <= params.min_p <= 1
    assert -2 <= params.presence_penalty <= 2 and -2 <= params.frequency_penalty <= 2
    assert 0 < params.repetition_penalty <= 100
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_a_seed_is_any_number_of_64_bits_and_minus_one_is_none():
    assert SamplingParams(seed=-1).seed is None
    assert [SamplingParams(seed=seed).seed for seed in (SEED_MIN, -2, 0, SEED_MAX)] == [
        SEED_MIN,
        -2,
        0,
        SEED_MAX,
    ]


def test_numbers_and_strings_become_pythons_own():
    params = SamplingParams(
        temperature=np.float64(0.5),
        stop=np.str_("a"),
        bad_words=[np.str_("b")],
        logit_bias={5: np.float64(1)},
    )
    kinds = [
        type(params.temperature),
        type(params.stop[0]),
        type(params.bad_words[0]),
        type(params.logit_bias[5]),
    ]
    assert kinds == [float, str, str, float]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("stop", "\ud800", "a lone surrogate"),
        ("bad_words", ["fine", "\ud800"], "a lone surrogate"),
        ("extra_args", {"x": "\ud800"}, "a lone surrogate"),
        ("extra_args", {"x": 2**70}, "more than 64 bits"),
        ("structured_outputs", {"choice": ["\ud800"]}, "a lone surrogate"),
    ],
)
def test_what_cannot_travel_is_refused(name, value, message):
    with pytest.raises(BadRequest, match=f"{name} has .*{message}") as caught:
        SamplingParams(**{name: value})
    assert caught.value.parameter == name


ODD = (
    [[]],
    [{}],
    ({},),
    {"a": []},
    {1: "x"},
    b"x",
    {1},
    object(),
    math.nan,
    -math.inf,
    1j,
    "\ud800",
    [None],
    ...,
)


@pytest.mark.parametrize("name", SamplingParams.__struct_fields__)
def test_any_value_is_taken_or_is_a_bad_request(name):
    for value in ODD:
        with contextlib.suppress(BadRequest):
            SamplingParams(**{name: value})
