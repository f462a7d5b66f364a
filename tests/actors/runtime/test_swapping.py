"""Plans of successors: classes beside whoever asks for the swap, wherever the topology was started."""

from __future__ import annotations

import json
import sys

import msgspec
import pytest

from pageant.actors.executor.actor import Executor
from pageant.actors.runtime.classes import decode_options, load_actor_class
from pageant.actors.runtime.plans import ActorPlan
from pageant.actors.runtime.swapping import successor, successors
from pageant.protocol.errors import TopologyError
from pageant.protocol.lifecycle import SLEEPING_CLASS, SleepingOptions

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


LEADER, FOLLOWER = "pageant.actors.executor.actor:Executor", "pageant.actors.executor.groups.rank:Rank"
GROUP = [
    ActorPlan(
        f"executor/{rank}",
        node,
        FOLLOWER if rank else LEADER,
        json.dumps({"model": "m", "tensor_parallel": 2, "device": f"cpu:{rank}"}).encode(),
        bound="executor",
    )
    for rank, node in enumerate("ab")
]


def test_members_of_a_group_get_the_same_options_and_keep_their_classes_and_devices():
    found = successors(GROUP, "", '{"step_patience": 5.0, "device": "cpu:0"}')
    assert [(plan.cls, plan.node, plan.bound) for plan in found] == [
        (LEADER, "a", "executor"),
        (FOLLOWER, "b", "executor"),
    ]
    options = [json.loads(plan.options) for plan in found]
    assert [one["device"] for one in options] == ["cpu:0", "cpu:1"]
    assert {one["step_patience"] for one in options} == {5.0}


def test_a_group_falls_asleep_and_wakes_with_all_members_on_the_devices_that_they_had():
    awake = GROUP[0].options.decode()
    sleeping = SleepingOptions(awake_class=LEADER, awake_options=awake, level=1, device="cpu:0")
    asleep = successors(GROUP, SLEEPING_CLASS, msgspec.json.encode(sleeping).decode())
    assert {plan.cls for plan in asleep} == {SLEEPING_CLASS}
    ranks = [load_actor_class(plan.cls, "x")(decoded(plan)) for plan in asleep]
    assert [rank._awake.device for rank in ranks] == ["cpu:0", "cpu:1"]
    woken = successors(asleep, LEADER, awake)
    assert [plan.cls for plan in woken] == [LEADER, FOLLOWER]
    assert [json.loads(plan.options)["device"] for plan in woken] == ["cpu:0", "cpu:1"]


def decoded(plan):
    return decode_options(load_actor_class(plan.cls, "x"), plan.options, "x")


@pytest.mark.parametrize(
    ("plans", "cls", "options", "words"),
    [
        (GROUP, "", '{"tensor_parallel": 4}', "found tensor_parallel: 4, which makes 4; expected 2"),
        (GROUP, "", '{"tensor_parallel": 1}', "found no group, which makes 1; expected 2"),
        (GROUP, "", '{"device": "cpu:1"}', r"options.device: found 'cpu:1'; expected 'cpu:0'"),
        (GROUP[:1], "", '{"pipeline_parallel": 2}', "makes 4; expected 1"),
        (GROUP, f"{__name__}:Bare", "", "leads no group"),
    ],
)
def test_a_swap_that_would_make_a_group_another_is_refused(plans, cls, options, words):
    with pytest.raises(TopologyError, match=words):
        successors(plans, cls, options)


class Bare(Executor):
    """An executor that leads nobody."""

    follower = ""
