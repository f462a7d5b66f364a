"""Schemas with whatever JSON can say are compiled or refused: no other exception leaves the compiler."""

from __future__ import annotations

import contextlib
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pageant.actors.grammar.errors import GrammarError
from pageant.protocol.structured_outputs import StructuredOutputsParams

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
odd_numbers = st.one_of(
    st.integers(-(10**400), 10**400), st.floats(allow_nan=True, allow_infinity=True), st.integers(-3, 3)
)
odd_values = st.one_of(odd_numbers, st.none(), st.booleans(), st.text(max_size=5), st.just([]), st.just({}))
kinds = st.sampled_from(["integer", "number", "string", "array", "object", "boolean", "null", "other"])
leaves = st.fixed_dictionaries(
    {},
    optional={
        "type": st.one_of(kinds, st.lists(kinds, max_size=3), odd_values),
        "enum": st.one_of(st.lists(odd_values, max_size=3), odd_values),
        "const": odd_values,
        "pattern": st.one_of(st.text(max_size=8), st.sampled_from(["(", "a{9999999}", "[z-a]", "\\d+$"])),
        "format": st.one_of(st.sampled_from(["date", "uuid", "none"]), odd_values),
        **dict.fromkeys([*BOUNDS, *SIZES], odd_values),
    },
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"items": inner}),
        st.fixed_dictionaries({"properties": st.dictionaries(st.text(max_size=3), inner, max_size=2)}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"$ref": st.text(max_size=6)}),
    ),
    max_leaves=4,
)


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(schema=schemas)
def test_any_schema_is_compiled_or_refused(compiler, schema):
    with contextlib.suppress(GrammarError):
        compiler.compile(StructuredOutputsParams(json=json.dumps(schema)))
