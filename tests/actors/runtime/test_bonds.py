"""Groups of actors that live as one, in the supervisor's core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pageant.actors.runtime.instructions import GiveUp, Instruction, Launch, Start, Stop
from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.actors.runtime.restarts import Supervision

ROOT = "front"


def core() -> Supervision:
    """A group of two on nodes of their own, and one actor by itself on the second node."""
    nodes = (NodePlan(ROOT), NodePlan("a", process=True), NodePlan("b", process=True))
    actors = (
        ActorPlan("executor/0", "a", "m:Leader", b"{}", bound="executor"),
        ActorPlan("executor/1", "b", "m:Rank", b"{}", bound="executor"),
        ActorPlan("other", "b", "m:Other", b"{}"),
    )
    return Supervision(ROOT, "", nodes, actors)


def started(instructions: list[Instruction]) -> dict[str, int]:
    return {one.order.name: one.order.incarnation for one in instructions if isinstance(one, Start)}


def stopped(instructions: list[Instruction]) -> dict[str, int]:
    return {one.name: one.incarnation for one in instructions if isinstance(one, Stop)}


def join(supervision: Supervision, now: float) -> dict[str, int]:
    """Have both nodes come; return which actors started, once the last has."""
    supervision.begin(now)
    assert started(supervision.node_joined("b", 1, "", now)) == {"other": 1}, (
        "the group waits for all its nodes"
    )
    return started(supervision.node_joined("a", 1, "", now))


def all_up(supervision: Supervision, incarnation: int, now: float) -> None:
    for name in ("executor/1", "executor/0"):
        supervision.actor_started(name, incarnation, (), now)


def test_a_group_begins_when_all_of_its_nodes_are_up() -> None:
    assert join(core(), 0.0) == {"executor/0": 1, "executor/1": 1}


@pytest.mark.parametrize("victim", ["executor/0", "executor/1"])
def test_a_death_ends_all_members_counts_once_and_begins_all_under_one_incarnation(victim: str) -> None:
    supervision = core()
    join(supervision, 0.0)
    all_up(supervision, 1, 1.0)
    other = {"executor/0": "executor/1", "executor/1": "executor/0"}[victim]
    assert stopped(supervision.actor_failed(victim, 1, "it broke", "", 100.0)) == {other: 1}
    assert not supervision.actor_failed(other, 1, "the group is broken", "", 100.1), (
        "a consequence counts nothing"
    )
    assert not started(supervision.tick(100.2)), "the other has not ended"
    assert started(supervision.actor_stopped(other, 1)) == {"executor/0": 2, "executor/1": 2}
    assert not supervision.actor_stopped(other, 1), "said twice"
    entries = {entry.name: entry for entry in supervision.directory().actors}
    assert (entries["executor/0"].restarts, entries["executor/1"].restarts) == (1, 0)
    assert entries["other"].incarnation == 1, "others live on"


@pytest.mark.parametrize("node", ["a", "b"])
def test_the_end_of_a_node_ends_the_group_which_begins_again_with_the_node(node: str) -> None:
    supervision = core()
    join(supervision, 0.0)
    all_up(supervision, 1, 1.0)
    survivor = {"a": "executor/1", "b": "executor/0"}[node]
    assert stopped(supervision.node_exited(node, 1, "killed by signal 9", 100.0)) == {survivor: 1}
    launched = [one for one in supervision.tick(100.0) if isinstance(one, Launch)]
    assert [one.node for one in launched] == [node]
    if node == "a":
        assert not started(supervision.node_joined(node, launched[0].incarnation, "", 101.0))
        begun = started(supervision.actor_stopped(survivor, 1))
    else:
        assert not supervision.actor_stopped(survivor, 1), "its node is down"
        begun = started(supervision.node_joined(node, launched[0].incarnation, "", 101.0))
    assert {name: begun[name] for name in ("executor/0", "executor/1")} == {"executor/0": 2, "executor/1": 2}


def test_a_group_whose_member_ends_its_process_waits_for_the_next_one_and_dies_once() -> None:
    supervision = core()
    join(supervision, 0.0)
    all_up(supervision, 1, 1.0)
    supervision.actor_failed("executor/1", 1, "a step hung", "", 100.0, ends_process=True)
    assert not started(supervision.actor_stopped("executor/0", 1))
    assert not started(supervision.tick(100.2)), "its process is as good as gone"
    assert not stopped(supervision.node_exited("b", 1, "exit code 1", 100.5))
    launched = [one for one in supervision.tick(100.5) if isinstance(one, Launch)]
    begun = started(supervision.node_joined("b", launched[0].incarnation, "", 101.0))
    assert begun == {"executor/0": 2, "executor/1": 2, "other": 2}


def test_a_member_that_cannot_be_stopped_ends_its_process_and_the_group_begins_once() -> None:
    """A thread that loops: the group's next life would fall with the process, and so waits for another."""
    supervision = core()
    join(supervision, 0.0)
    all_up(supervision, 1, 1.0)
    supervision.actor_failed("executor/0", 1, "a step hung", "", 100.0)
    assert not started(supervision.tick(101.0))
    assert not started(supervision.node_exited("b", 1, "exit code 1", 105.0))
    launched = [one for one in supervision.tick(105.0) if isinstance(one, Launch)]
    begun = started(supervision.node_joined("b", launched[0].incarnation, "", 106.0))
    assert begun == {"executor/0": 2, "executor/1": 2, "other": 2}
    entries = {entry.name: entry for entry in supervision.directory().actors}
    assert (entries["executor/0"].restarts, entries["executor/1"].restarts) == (1, 0), "one death"


def test_a_group_that_is_backing_off_does_not_begin_when_a_member_has_ended() -> None:
    supervision = core()
    join(supervision, 0.0)
    supervision.actor_failed("executor/0", 1, "it broke", "", 1.0)
    assert not supervision.actor_stopped("executor/1", 1)
    assert started(supervision.tick(2.0)) == {"executor/0": 2, "executor/1": 2}


def test_a_group_that_fell_while_a_node_was_down_waits_for_it() -> None:
    supervision = core()
    join(supervision, 0.0)
    all_up(supervision, 1, 1.0)
    supervision.actor_failed("executor/0", 1, "it broke", "", 100.0)
    supervision.node_exited("b", 1, "killed", 100.0)  # and will never say that the member has ended
    launched = [one for one in supervision.tick(101.0) if isinstance(one, Launch)]
    assert not started(supervision.tick(102.0)), "half a group never begins"
    assert started(supervision.node_joined("b", launched[0].incarnation, "", 103.0)) == {
        "executor/0": 2,
        "executor/1": 2,
        "other": 2,
    }


def test_members_that_die_before_any_is_ready_are_given_up_with_the_cause() -> None:
    supervision = core()
    join(supervision, 0.0)
    given_up = [
        one
        for one in supervision.actor_failed("executor/1", 1, "no such checkpoint", "", 1.0, permanent=True)
        if isinstance(one, GiveUp)
    ]
    assert [(one.who, one.error) for one in given_up] == [("executor/1", "no such checkpoint")]
    assert all(entry.final for entry in supervision.directory().actors if entry.name != "other")


def test_deaths_that_requests_are_charged_with_are_taken_off_the_group_and_all_of_its_nodes() -> None:
    supervision = core()
    join(supervision, 0.0)
    all_up(supervision, 1, 1.0)
    supervision.node_exited("b", 1, "killed", 2.0)
    assert supervision._nodes["b"].early_deaths == 1
    supervision.charged("executor/0", 1)
    assert supervision._nodes["b"].early_deaths == 0


def other_options(supervision: Supervision) -> list[ActorPlan]:
    """Return plans of successors of both members."""
    return [replace(plan, options=b'{"new":1}') for plan in supervision.plans_of("executor/1")]


def options(supervision: Supervision) -> set[bytes]:
    return {supervision.planned(name).options for name in ("executor/0", "executor/1")}  # type: ignore[union-attr]


def test_a_swap_begins_all_members_under_one_incarnation_and_is_done_when_all_are_up() -> None:
    supervision = core()
    join(supervision, 0.0)
    assert supervision.plans_of("executor/1") == [], "they are not up yet"
    all_up(supervision, 1, 1.0)
    swapped = supervision.swap(*other_options(supervision))
    assert started(swapped) == {"executor/0": 2, "executor/1": 2}
    assert not stopped(swapped), "each node ends the former life there, and keeps what it leaves"
    supervision.actor_started("executor/1", 2, (), 2.0)
    assert supervision.plans_of("executor/0") == [], "one swap at a time"
    supervision.actor_started("executor/0", 2, (), 2.0)
    assert {plan.options for plan in supervision.plans_of("executor/0")} == {b'{"new":1}'}
    assert not supervision.roll_back("executor/0", "it is late"), "it is done"


@pytest.mark.parametrize("victim", ["executor/0", "executor/1"])
@pytest.mark.parametrize("up_before", [(), ("executor/1",)])
def test_a_successor_that_fails_brings_all_former_members_back(
    victim: str, up_before: tuple[str, ...]
) -> None:
    supervision = core()
    join(supervision, 0.0)
    all_up(supervision, 1, 1.0)
    supervision.swap(*other_options(supervision))
    for name in up_before:
        supervision.actor_started(name, 2, (), 2.0)
    back = supervision.actor_failed(victim, 2, "it takes no such option", "", 2.5)
    assert started(back) == {"executor/0": 3, "executor/1": 3}
    assert options(supervision) == {b"{}"}
    other = {"executor/0": "executor/1", "executor/1": "executor/0"}[victim]
    assert not supervision.actor_failed(other, 2, "the group is broken", "", 2.6), "a consequence"
    all_up(supervision, 3, 3.0)
    assert supervision._actors["executor/0"].early_deaths == 0, "no death of the former"


@pytest.mark.parametrize("node", ["a", "b"])
def test_a_node_that_ends_during_a_swap_brings_all_former_members_back(node: str) -> None:
    supervision = core()
    join(supervision, 0.0)
    all_up(supervision, 1, 1.0)
    supervision.swap(*other_options(supervision))
    survivor = {"a": "executor/1", "b": "executor/0"}[node]
    assert stopped(supervision.node_exited(node, 1, "killed by signal 9", 100.0)) == {survivor: 2}
    assert options(supervision) == {b"{}"}
    launched = [one for one in supervision.tick(100.0) if isinstance(one, Launch)]
    begun = started(supervision.node_joined(node, launched[0].incarnation, "", 101.0))
    begun |= started(supervision.actor_stopped(survivor, 2))
    assert {name: begun[name] for name in ("executor/0", "executor/1")} == {"executor/0": 3, "executor/1": 3}
    assert options(supervision) == {b"{}"}
