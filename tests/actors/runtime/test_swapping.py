"""Plans of successors: classes beside whoever asks for the swap, wherever the topology was started."""

from __future__ import annotations

import sys

import pytest

from pageant.actors.runtime.plans import ActorPlan
from pageant.actors.runtime.swapping import successor
from pageant.protocol.errors import TopologyError

OPTIONS = b'{"model": "m"}'
PLAN = ActorPlan("detokenizer", "front", "pageant.actors.detokenizer.actor:Detokenizer", OPTIONS)
MODULE = "swapped_in_a_test_of_swapping"
SOURCE = """
from pageant.actors.detokenizer.actor import Detokenizer

class Mine(Detokenizer):
    '''Says what it says.'''
"""


def test_a_class_beside_the_caller_is_found(tmp_path, monkeypatch):
    (tmp_path / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, MODULE, None)
    monkeypatch.delitem(sys.modules, MODULE)
    with pytest.raises(TopologyError, match="there is no module"):
        successor(PLAN, f"{MODULE}:Mine", "")
    swapped = successor(PLAN, f"{MODULE}:Mine", "", str(tmp_path))
    assert (swapped.cls, swapped.folder) == (f"{MODULE}:Mine", str(tmp_path))
    assert successor(swapped, "", "").folder == str(tmp_path)


@pytest.mark.parametrize(
    ("cls", "options", "words"),
    [
        ("fcfs", "", "expected module:Class"),
        ("pageant.actors.tokenizer:Tokenizer", "", "does not take the role"),
        ("", "[]", "expected a JSON object"),
        ("", '{"nonsense": 1}', "no such option"),
    ],
)
def test_a_swap_that_cannot_be_is_refused_before_anything_is_touched(cls, options, words):
    with pytest.raises(TopologyError, match=words):
        successor(PLAN, cls, options)
