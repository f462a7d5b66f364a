"""A row of blocks is in order, whatever comes in one piece."""

from __future__ import annotations

from pageant.actors.http.blocks import Blocks
from pageant.actors.parsers.base import CallPiece, Said


def fed(*pieces):
    """The kinds, names and texts of the blocks, and the steps."""
    blocks = Blocks()
    steps = [(step, block.place) for said in pieces for step, block, _ in blocks.feed(said)]
    steps += [(step, block.place) for step, block, _ in blocks.end()]
    return [(block.kind, block.name, block.text) for block in blocks.all], steps


def test_what_goes_on_with_a_call_comes_before_what_follows_it():
    begun = Said(calls=(CallPiece(0, "", "id0", "f"), CallPiece(0, '{"a": ')))
    rest = Said(content="Done.", calls=(CallPiece(0, "1}"), CallPiece(1, "", "id1", "g"), CallPiece(1, "{}")))
    blocks, steps = fed(begun, rest)
    assert blocks == [("call", "f", '{"a": 1}'), ("text", "", "Done."), ("call", "g", "{}")]
    assert [place for step, place in steps if step == "begins"] == [0, 1, 2]
    assert [place for step, place in steps if step == "ends"] == [0, 1, 2]


def test_thoughts_come_before_text_and_text_before_calls():
    blocks, _ = fed(Said("text", "thought", (CallPiece(0, "{}", "id", "f"),)), Said("more"))
    assert [kind for kind, _, _ in blocks] == ["reasoning", "text", "call", "text"]


def test_a_row_has_a_block():
    assert fed() == ([("text", "", "")], [("begins", 0), ("ends", 0)])
