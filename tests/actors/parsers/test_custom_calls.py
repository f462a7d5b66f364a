"""Calls of custom tools have a text, however their arguments come."""

from __future__ import annotations

import json

import pytest

from pageant.actors.parsers.base import CallPiece, Said, joined
from pageant.actors.parsers.custom_calls import CustomCalls

TEXTS = ["", "a", 'say "x"\n\t\\', "ü\u2028 \U0001f600 e", "*** Begin Patch\n+a\n*** End Patch"]


class Pieces:
    """A parser that tells given pieces, one a feed."""

    num_reasoning_tokens = 3

    def __init__(self, pieces):
        self.pieces = list(pieces)

    def begin(self, prompt):
        """See `OutputParser`."""

    def feed(self, text, token_ids, ended, cut=False):
        """See `OutputParser`."""
        return Said(calls=self.pieces.pop(0) if self.pieces else ())


def told(pieces, ended_with_last=True):
    """The calls that are told, when pieces come one by one."""
    parser = CustomCalls(Pieces([[piece] for piece in pieces]), {"patch"})
    parser.begin(None)
    calls = []
    for index, _ in enumerate(pieces):
        calls += parser.feed("", (), ended_with_last and index == len(pieces) - 1).calls
    return calls if ended_with_last else calls + list(parser.feed("", (), True).calls)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("ascii", [True, False])
@pytest.mark.parametrize("ended_with_last", [True, False])
def test_the_text_is_told_as_it_comes(text, size, ascii, ended_with_last):
    written = json.dumps({"input": text}, ensure_ascii=ascii)
    parts = [written[start : start + size] for start in range(0, len(written), size)]
    pieces = [CallPiece(0, "", "id", "patch"), *(CallPiece(0, part) for part in parts)]
    (call,) = joined(told(pieces, ended_with_last))
    assert call == CallPiece(0, text, "id", "patch", is_custom=True)
    assert all(piece.is_custom for piece in told(pieces))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"patch": "a"}', "a"),
        ('"a"', "a"),
        ("{}", ""),
        ('{"input": null}', ""),
        ('{"input": 1}', '{"input": 1}'),
        ('{"a": "b", "c": "d"}', '{"a": "b", "c": "d"}'),
        ("not JSON", "not JSON"),
        ('{"input": "cut o', "cut o"),
        ('{"input": "cut \\u00', "cut "),
        ('{"inp', '{"inp'),
        ('{ "input" : "a" , "more": 1}', "a"),
    ],
)
def test_other_arguments_are_the_only_text_in_them_or_all_that_was_written(written, expected):
    for pieces in (
        [CallPiece(0, written, "id", "patch")],
        [CallPiece(0, "", "id", "patch"), CallPiece(0, written)],
    ):
        (call,) = joined(told(pieces))
        assert call.arguments == expected


def test_functions_beside_custom_tools_are_left_as_they_are():
    pieces = [
        CallPiece(0, '{"input": "a"}', "0", "f"),
        CallPiece(1, "odd", "1", "patch"),
        CallPiece(2, '{"b": ', "2", "g"),
        CallPiece(2, "1}"),
        CallPiece(3, '{"input": "c"}', "3", "patch"),
    ]
    calls = joined(told(pieces))
    assert [(call.name, call.arguments, call.is_custom) for call in calls] == [
        ("f", '{"input": "a"}', False),
        ("patch", "odd", True),
        ("g", '{"b": 1}', False),
        ("patch", "c", True),
    ]
