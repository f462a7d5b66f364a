"""Schemas as a compiler takes them: annotations go, bounds become what can be expressed, and nothing gets wider."""

from __future__ import annotations

import copy

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pageant.protocol.json_schemas import INTEGER_MAX, INTEGER_MIN, is_exact, prepare, unenforced

INT64 = -(2**63), 2**63 - 1


def prepared(schema):
    made = copy.deepcopy(schema)
    prepare(made)
    return made


def test_an_unknown_format_is_an_annotation_and_is_named_once():
    schema = {
        "properties": {
            "format": {"type": "string", "format": "password"},
            "paths": {"items": {"type": "string", "format": "path"}, "uniqueItems": True},
            "more": {"anyOf": [{"type": "string", "format": "path"}, {"type": "null"}]},
            "when": {"type": "string", "format": "date-time"},
            "count": {"type": "integer", "format": "int32"},
        },
        "enum": [{"format": "not a schema"}],
    }
    assert sorted(unenforced(schema)) == ["format: password", "format: path", "uniqueItems"]
    made = prepared(schema)
    assert unenforced(made) == []
    assert made["properties"]["when"]["format"] == "date-time"
    assert made["enum"] == [{"format": "not a schema"}] and "format" in made["properties"]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"minimum": INT64[0], "maximum": INT64[1]}, {"minimum": INTEGER_MIN, "maximum": INTEGER_MAX}),
        ({"minimum": INT64[0], "exclusiveMaximum": 2**63}, {"minimum": INTEGER_MIN, "maximum": INTEGER_MAX}),
        ({"minimum": 0, "maximum": 2**64 - 1}, {"minimum": 0, "maximum": INTEGER_MAX}),
        ({"minimum": 2**53 + 1, "maximum": 2**53 + 3}, {"minimum": 2**53 + 2, "maximum": 2**53 + 2}),
        ({"exclusiveMinimum": 3, "maximum": 9}, {"exclusiveMinimum": 3, "maximum": 9}),
        ({"minimum": 2**53 + 1, "maximum": 2**53 + 1}, {"minimum": 2**53 + 1, "maximum": 2**53 + 1}),
    ],
)
def test_bounds_of_integers_become_those_that_doubles_hold(schema, expected):
    assert prepared({"type": "integer", **schema}) == {"type": "integer", **expected}


def test_bounds_of_other_numbers_become_those_that_can_be_expressed():
    largest = 1.7976931348623157e308
    made = prepared({"type": "number", "minimum": -largest, "maximum": largest})
    assert made == {"type": "number", "minimum": -(10**18), "maximum": 10**18}
    assert prepared({"minimum": 1e300}) == {"minimum": 1e300}, "nothing would be left"


BOUNDS = st.integers(-(2**70), 2**70) | st.integers(2**53 - 4, 2**53 + 4) | st.integers(-10, 10)


@given(
    st.dictionaries(
        st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]), BOUNDS, min_size=1
    ),
    BOUNDS,
)
def test_what_is_valid_by_the_narrower_schema_is_valid_by_the_original(bounds, value):
    schema = {"type": "integer", **bounds}
    if jsonschema.Draft202012Validator(prepared(schema)).is_valid(value):
        assert jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        (2**53, True),
        (2**53 + 1, False),
        (2**53 + 2, True),
        (1234567890123456789, False),
        (INT64[0], False),
        (10**22, True),
    ],
)
def test_which_integers_survive_a_double(value, exact):
    assert is_exact(value) == exact


@pytest.mark.parametrize(
    ("options", "becomes"),
    [
        ([{"const": "a", "title": "A"}, {"const": "b"}], "anyOf"),
        ([{"enum": [1, 2]}, {"const": "1"}, {"const": {"a": 1}}], "anyOf"),
        ([{"enum": ["a", "b"]}, {"const": "b"}], "oneOf"),
        ([{"const": {"a": 1, "b": 2}}, {"const": {"b": 2, "a": 1}}], "oneOf"),
        ([{"const": 1}, {"type": "integer"}], "oneOf"),
    ],
)
def test_one_of_different_values_is_any_of_them(options, becomes):
    schema = {"properties": {"a": {"oneOf": options}}}
    assert prepared(schema) == {"properties": {"a": {becomes: options}}}
