"""Recordings: the file survives being cut off anywhere, a tap is bounded, and without texts there is no text."""

from __future__ import annotations

import asyncio
import types
import typing
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import numpy as np
import pytest

from pageant.actors.runtime import Actor, receives, tap
from pageant.actors.runtime.node import Node
from pageant.actors.runtime.recording import (
    MAGIC,
    RecordingHeader,
    RecordingReader,
    RecordingWriter,
    UnreadableRecording,
)
from pageant.actors.runtime.redaction import NAMES, TEXT_KINDS, Redaction, text_fields
from pageant.actors.runtime.tap import Tap
from pageant.protocol.arrays import ArrayKind, int32
from pageant.protocol.codec import Codec
from pageant.protocol.embedding import EmbeddedRows, PromptEmbeds, row_names
from pageant.protocol.message import Message
from pageant.protocol.recording import Recorded, RecordedMessage
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.schema import protocol_kinds
from pageant.protocol.serving import Abort, Submit
from pageant.protocol.stepping import NewSequence, StepPlan
from pageant.protocol.structured_outputs import StructuredOutputsParams

HEADER = RecordingHeader(
    version="0.0.1", fingerprint="other", began=5.0, topology="demo", kinds=("Abort",), texts=False, actors={}
)
SECRET = "my private words"


def piece(number: int) -> Recorded:
    body, _ = Codec().encode(Abort(frontend="frontend", request_ids=(str(number),)))
    one = RecordedMessage(
        at=float(number), kind="Abort", sender="frontend", sender_incarnation=1, to="scheduler", to_incarnation=1,
        body=body,
    )  # fmt: skip
    return Recorded(node="front", incarnation=1, messages=(one,))


def written(path: Path, pieces: int, ended: float | None = 9.0) -> bytes:
    writer = RecordingWriter(path, HEADER)
    for number in range(pieces):
        writer.write(piece(number))
    writer.close(ended)
    assert writer.messages == pieces and writer.bytes == (
        len(path.read_bytes()) if ended is None else writer.bytes
    )
    return path.read_bytes()


def read(path: Path) -> tuple[list[str], bool]:
    with RecordingReader(path) as reader:
        found = [reader.decode(one).request_ids[0] for one in reader.messages()]
        return found, reader.whole


def test_what_is_written_is_read_and_whole(tmp_path):
    written(tmp_path / "one", 3)
    assert read(tmp_path / "one") == (["0", "1", "2"], True)


def test_cut_off_anywhere_all_but_the_piece_that_was_cut_is_read(tmp_path):
    whole = written(tmp_path / "one", 3, ended=None)
    two = len(written(tmp_path / "two", 2, ended=None))
    for length in range(two, len(whole)):
        (tmp_path / "one").write_bytes(whole[:length])
        assert read(tmp_path / "one") == (["0", "1"], False)


def test_a_damaged_piece_ends_the_recording(tmp_path):
    data = bytearray(written(tmp_path / "one", 3))
    data[len(written(tmp_path / "two", 1, ended=None)) + 20] ^= 1
    (tmp_path / "one").write_bytes(data)
    assert read(tmp_path / "one") == (["0"], False)


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "one").write_text("precious")
    with pytest.raises(FileExistsError):
        RecordingWriter(tmp_path / "one", HEADER)
    assert (tmp_path / "one").read_text() == "precious"


@pytest.mark.parametrize("data", [b"", b"GIF89a", MAGIC, MAGIC + b"\x05\0\0\0\0\0\0\0abcde"])
def test_what_is_no_recording_is_refused(tmp_path, data):
    (tmp_path / "one").write_bytes(data)
    with pytest.raises(UnreadableRecording, match="is no recording"):
        RecordingReader(tmp_path / "one")


def test_a_message_of_another_version_is_refused_with_both_versions_named(tmp_path):
    writer = RecordingWriter(tmp_path / "one", HEADER)
    strange = msgspec.structs.replace(piece(0).messages[0], body=b"\x81\xa4what\x01")
    writer.write(msgspec.structs.replace(piece(0), messages=(strange,)))
    writer.close(None)
    with (
        RecordingReader(tmp_path / "one") as reader,
        pytest.raises(UnreadableRecording, match=r"0\.0\.1 \(other\)"),
    ):
        reader.decode(next(reader.messages()))


# The tap.


class Sink(Actor):
    @receives
    def take(self, message: Abort) -> None: ...


@pytest.fixture
async def node():
    node = Node("front")
    await node.add("sink", 3, Sink(Sink.Options())).start()
    yield node
    await node.stop()


def tapped(node: Node, **keywords: Any) -> Tap:
    given: dict[str, Any] = {
        "name": "a",
        "kinds": ("Abort",),
        "texts": True,
        "give_up": lambda: None,
    } | keywords
    node.taps.append(Tap(node, given.pop("name"), given.pop("kinds"), **given))
    return node.taps[0]


def abort(name: str) -> Abort:
    return Abort(frontend="frontend", request_ids=(name,))


async def test_what_cannot_be_encoded_is_missing_in_the_recording_and_harms_nobody(node):
    one = tapped(node)
    node.tell("sink", abort("\ud83d"))
    node.tell("sink", abort("b"))
    one.end()
    pieces = []
    while (piece := await one.next()) is not None:
        pieces.append(piece)
    assert [message.kind for piece in pieces for message in piece.messages] == ["Abort"]
    assert sum(piece.dropped for piece in pieces) == 1


async def test_a_tap_keeps_what_actors_are_told_in_order_and_ends_with_what_is_left(node):
    one = tapped(node)
    node.tell("sink", abort("a"))
    first = await one.next()
    assert first is not None and first.node == "front"
    node.tell("sink", abort("b"))
    one.end()
    pieces = [first]
    while (more := await one.next()) is not None:
        pieces.append(more)
    kept = [message for each in pieces for message in each.messages]
    assert [(one.kind, one.to, one.to_incarnation, one.sender) for one in kept] == [
        ("Abort", "sink", 3, "node/front")
    ] * 2
    assert [Codec().decode("Abort", one.body).request_ids for one in kept] == [("a",), ("b",)]


async def test_other_kinds_are_not_kept(node):
    one = tapped(node, kinds=("Submit",))
    node.tell("sink", abort("a"))
    one.end()
    assert [len(each.messages) async for each in _pieces(one)] in ([], [0])


async def _pieces(one: Tap) -> typing.AsyncIterator[Recorded]:
    while (each := await one.next()) is not None:
        yield each


async def test_a_tap_that_nobody_empties_drops_and_counts_and_then_gives_up(node, monkeypatch):
    monkeypatch.setattr(tap, "BYTES_MAX", 100)
    monkeypatch.setattr(tap, "PATIENCE_SECONDS", -1.0)
    gone = asyncio.Event()
    one = tapped(node, give_up=gone.set)
    for number in range(50):
        node.tell("sink", abort(str(number)))
    assert gone.is_set()
    one.end()
    found = [each async for each in _pieces(one)]
    kept = sum(len(each.messages) for each in found)
    assert 0 < kept < 10 and kept + sum(each.dropped for each in found) == 50


# Without texts.


def filled(hint: Any, depth: int = 0) -> Any:
    """A value of a type with `SECRET` wherever there is room for it but in names."""
    if hint in (str, Any):
        return SECRET
    if hint is bytes:
        return b""
    if hint in (int, float, bool):
        return hint(1)
    if isinstance(hint, ArrayKind):
        return np.zeros((0,) * hint.rank, hint.dtype)
    if hint is SamplingParams:
        return SamplingParams(stop=(SECRET,), bad_words=(SECRET,), extra_args={SECRET: SECRET})
    if hint is StructuredOutputsParams:
        return StructuredOutputsParams(regex=SECRET)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return filled_struct(hint, depth)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return parts[0]
    if origin in (typing.Union, types.UnionType):
        values = (filled(part, depth) for part in parts if part is not type(None))
        return max(values, key=lambda one: SECRET in str(one))
    if origin is tuple and parts[-1] is not Ellipsis:
        return tuple(filled(part, depth + 1) for part in parts)
    if origin is tuple:
        return (filled(parts[0], depth + 1),) if depth < 6 else ()
    if origin is dict:
        return {filled(parts[0], depth + 1): filled(parts[1], depth + 1)}
    return next(iter(hint))  # of an enum


def filled_struct(kind: Any, depth: int = 0) -> Any:
    names = {name: (name,) if name == "request_ids" else name for name in NAMES}
    fields = msgspec.structs.fields(kind)
    return kind(**{one.name: names.get(one.name) or filled(one.type, depth + 1) for one in fields})


@pytest.mark.parametrize(
    "kind", [kind for kind in protocol_kinds() if text_fields(kind)], ids=lambda kind: kind.__name__
)
def test_no_message_keeps_text(kind):
    message = filled_struct(kind)
    stripped = Redaction(b"key").redact(message)
    if stripped is None:
        assert kind.__name__ in TEXT_KINDS
        return
    assert SECRET not in str(stripped)
    body, arrays = Codec().encode(stripped)
    assert isinstance(Codec().decode(kind.__name__, body, arrays), kind)


def test_names_that_say_who_shares_what_are_alike_where_they_were_alike():
    def submit(tenant: str, salt: str | None) -> Submit:
        return Submit(
            request_id="1.1", frontend="frontend", prompt_token_ids=int32([1, 2]), params=SamplingParams(temperature=0),
            tenant=tenant, cache_salt=salt, extra_keys=(tenant, "adapter"),
        )  # fmt: skip

    redaction = Redaction(b"key")
    one, two, other = (
        redaction.redact(submit(*given)) for given in (("ann", "s"), ("ann", None), ("bob", "s"))
    )
    assert (
        one.tenant == two.tenant != other.tenant
        and one.cache_salt == other.cache_salt
        and two.cache_salt is None
        and one.extra_keys[0] == one.tenant
        and one.extra_keys[1] == other.extra_keys[1] != "adapter"
    )
    assert one.tenant != Redaction(b"another key").redact(submit("ann", "s")).tenant
    assert one.prompt_token_ids.tolist() == [1, 2] and one.request_id == "1.1"


class OwnMessage(Message, frozen=True, kw_only=True):
    number: int = 0


def test_kinds_of_a_users_own_are_not_kept_without_texts():
    assert Redaction(b"key").redact(OwnMessage(number=1)) is None


def test_embeddings_from_which_a_text_could_be_found_are_not_kept():
    rows = np.ones((2, 4), np.float32)
    embeds = PromptEmbeds(rows=rows, names=row_names(rows))
    submit = Submit(
        request_id="1.1",
        frontend="frontend",
        prompt_token_ids=int32([0, 0]),
        params=SamplingParams(temperature=0),
        prompt_embeds=embeds,
    )
    stripped = Redaction(b"key").redact(submit)
    assert stripped.prompt_embeds is None and len(stripped.prompt_token_ids) == 2
    sequence = NewSequence(
        row=0,
        token_ids=int32([0, 0]),
        num_prompt_tokens=2,
        blocks=int32([1]),
        params=submit.params,
        embedded=EmbeddedRows(start=0, rows=rows),
    )
    none, zero = int32(), np.zeros(0, np.bool_)
    columns = dict.fromkeys(
        ("freed_rows", "grown_rows", "grown_counts", "grown_blocks", "rows", "starts", "num_tokens"), none
    )
    plan = Redaction(b"key").redact(StepPlan(number=1, epoch=1, new=(sequence,), draws=zero, **columns))
    assert plan.new[0].embedded is None and plan.new[0].num_prompt_tokens == 2
