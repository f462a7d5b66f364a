"""Kinds of replicas: which are refused, and where."""

from __future__ import annotations

import pytest

from pageant.actors.runtime.kinds import ReplicaKind, check_alike, check_kinds
from pageant.actors.runtime.topology_specs import ActorSpec
from pageant.protocol.errors import TopologyError

DECODE = ReplicaKind(role="decode")


def kind(**actors: ActorSpec) -> ReplicaKind:
    return ReplicaKind(role="prefill", actors=actors)


def executor(**options) -> ReplicaKind:
    return kind(executor=ActorSpec(options=options))


@pytest.mark.parametrize(
    ("kinds", "place", "text"),
    [
        ({}, "replicas", "found no kinds"),
        (
            {"one": ReplicaKind()},
            "replicas.one",
            "found the role 'one'; expected one of: both, decode, prefill",
        ),
        ({"a": ReplicaKind(role="decod")}, "replicas.a.role", "did you mean 'decode'?"),
        ({"a": ReplicaKind(role="decode", count=0)}, "replicas.a.count", "found 0; expected at least 1"),
        (
            {"a": DECODE, "b": kind(executer=ActorSpec())},
            "replicas.b.actors.executer",
            "did you mean 'executor'?",
        ),
        (
            {"a": DECODE, "b": kind(router=ActorSpec())},
            "replicas.b.actors.router",
            "no actor that replicas own",
        ),
        (
            {"a": DECODE, "b": kind(executor=ActorSpec(count=0))},
            "replicas.b.actors.executor.count",
            "found 0; expected at least 1: each replica has its own executor",
        ),
        ({"prefill": ReplicaKind()}, "replicas", "found only kinds of role prefill"),
    ],
)
def test_a_kind_that_cannot_serve_is_refused_where_it_stands(kinds, place, text):
    with pytest.raises(TopologyError) as caught:
        check_kinds(kinds)
    assert str(caught.value).startswith(f"{place}: ") and text in str(caught.value)


@pytest.mark.parametrize(
    ("options", "settings", "text"),
    [
        ({"model": "other"}, {"model": "m"}, "model: found 'other'; expected 'm', which a has"),
        ({"block_size": 32}, {}, "block_size: found 32; expected the default, which a has"),
        ({"block_size": 16}, {"block_size": 32}, "block_size: found 16; expected 32, which a has"),
        (
            {"kv_cache_dtype": "int8"},
            {"kv_cache_dtype": "auto"},
            "kv_cache_dtype: found 'int8'; expected 'auto'",
        ),
    ],
)
def test_kinds_whose_blocks_differ_are_refused(options, settings, text):
    with pytest.raises(TopologyError) as caught:
        check_alike({"a": DECODE, "b": executor(**options)}, ActorSpec(), settings)
    assert f"replicas.b.actors.executor.options.{text}" in str(caught.value)


def test_kinds_may_differ_in_what_their_blocks_do_not_show():
    check_alike({"a": DECODE, "b": executor(threads=4, block_size=16)}, ActorSpec(), {"block_size": 16})
