"""Two builds' protocols: which differences they can live with, and what a receiver makes of fields it does not know."""

from __future__ import annotations

import copy
import zlib

import msgspec
import numpy as np
import pytest

from pageant.protocol.codec import Codec
from pageant.protocol.compatibility import OwnProtocol, PeerProtocol, own_protocol, shapes_of, summary
from pageant.protocol.errors import MalformedMessage, ProtocolError
from pageant.protocol.routing import GetRouterStatistics, Load
from pageant.protocol.schema import schema
from pageant.protocol.supervision import Directory

COMPONENTS = schema()["components"]
OURS = own_protocol()


def changed(change) -> OwnProtocol:
    components = copy.deepcopy(COMPONENTS)
    change(components)
    return OwnProtocol(shapes_of(components))


def append(struct: str, name: str, **schema):
    return lambda components: components[struct]["properties"].update({name: schema})


def require(components):
    components["Load"]["properties"]["more"] = {"type": "integer"}
    components["Load"]["required"].append("more")


def add_a_kind(components):
    components["Newest"] = copy.deepcopy(components["Load"])
    components["Load"]["properties"]["last"] = {"$ref": "#/components/Newest", "default": None}


def read(own: OwnProtocol) -> PeerProtocol:
    return PeerProtocol("2.0", own.describe())


@pytest.mark.parametrize(
    ("change", "differences"),
    [
        (append("Load", "more", type="integer", default=0), []),
        (append("SamplingParams", "title", type="string", default="none"), []),
        (add_a_kind, []),
        (lambda components: components.pop("Load"), []),
        (lambda components: components["Load"].update(description="Something else."), []),
        (lambda components: components["Load"]["properties"]["running"].update(description="Of rows."), []),
        (lambda components: components["Load"]["properties"].pop("output_tokens"), []),
        (require, ["Load.more is required, and known to one of them alone"]),
        (
            lambda components: components["Load"]["properties"].pop("running"),
            ["Load.running is required, and known to one of them alone"],
        ),
        (append("Load", "running", type="number"), ["Load.running has another type"]),
        (lambda components: components["Mode"]["enum"].append(10), ["Mode differs"]),
        (
            lambda components: components["Header"]["prefixItems"].append({"type": "integer"}),
            ["Header differs"],
        ),
    ],
)
def test_builds_understand_each_other_if_what_one_alone_knows_has_a_default(change, differences):
    theirs = changed(change)
    assert read(theirs).differences(OURS) == differences
    assert read(OURS).differences(theirs) == differences, "the other sees the same"


def test_the_fingerprint_is_of_types_and_not_of_words():
    assert (
        changed(lambda components: components["Load"].update(description="x")).fingerprint == OURS.fingerprint
    )
    assert changed(append("Load", "more", type="integer", default=0)).fingerprint != OURS.fingerprint
    assert changed(append("Load", "more", type="integer", default=1)).fingerprint != OURS.fingerprint


def test_many_differences_are_counted():
    assert summary([f"{n}" for n in range(9)]) == "0; 1; 2; 3; and 5 more"


@pytest.mark.parametrize(
    "data", [b"", b"garbage", zlib.compress(b"\xc1"), OURS.describe()[:-9], zlib.compress(bytes(10**7))]
)
def test_what_is_no_description_is_refused(data):
    with pytest.raises(ProtocolError, match="the description of a protocol cannot be read"):
        PeerProtocol("2.0", data)


def body_of(message, change) -> bytes:
    plain = msgspec.msgpack.decode(Codec().encode(message)[0])
    change(plain)
    return msgspec.msgpack.encode(plain)


LOAD = Load(seen=np.arange(3), waiting_tokens=4, running=2, waiting=1, seconds_per_token=0.5, output_tokens=9)


def test_fields_that_are_not_known_are_left_out_and_told_of():
    left = []
    body = body_of(LOAD, lambda plain: plain.update(more=[1, {"a": 2}], array=[0, "i8", [2]]))
    codec = Codec()
    with pytest.raises(MalformedMessage, match="more"):
        codec.decode("Load", body, [bytes(16)])
    found = codec.decode_known("Load", body, [bytes(16)], lambda *field: left.append(field))
    assert (found.seen.tolist(), found.running, found.output_tokens) == ([0, 1, 2], 2, 9)
    assert left == [("Load", "more", [1, {"a": 2}]), ("Load", "array", [0, "i8", [2]])]


def test_fields_of_structs_within_are_left_out_too():
    plain = {
        "type": "Directory",
        "version": 1,
        "actors": [],
        "nodes": [{"name": "a", "incarnation": 1, "endpoint": ""}],
    }
    right = Codec().decode("Directory", msgspec.msgpack.encode(plain))
    plain["nodes"][0]["later"] = 5
    left = []
    body = msgspec.msgpack.encode(plain)
    found = Codec().decode_known("Directory", body, [], lambda *field: left.append(field))
    assert isinstance(found, Directory) and left == [("NodeEntry", "later", 5)]
    assert msgspec.to_builtins(found) == msgspec.to_builtins(right)


def test_fields_that_did_not_come_have_their_defaults():
    body = body_of(LOAD, lambda plain: plain.pop("output_tokens"))
    assert Codec().decode("Load", body).output_tokens == 0.0


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x93\x01\x02", msgspec.msgpack.encode([1]), msgspec.msgpack.encode({"type": "Load"})],
)
def test_nonsense_of_another_version_is_refused_as_any(body):
    with pytest.raises(MalformedMessage, match="Load"):
        Codec().decode_known("Load", body, [], lambda *field: None)


def test_a_message_without_fields_is_read_without_those_that_came():
    body = body_of(GetRouterStatistics(), lambda plain: plain.update(kind="all"))
    assert isinstance(
        Codec().decode_known("GetRouterStatistics", body, [], lambda *_: None), GetRouterStatistics
    )
