"""Supervision: which actors and nodes start when, and when they are given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pageant.actors.runtime.instructions import Fence, GiveUp, Publish, Start
from pageant.actors.runtime.lease import LeaseTerms
from pageant.actors.runtime.lives import RestartLimits
from pageant.actors.runtime.restarts import JOINING_SECONDS_MAX, Supervision
from tests.actors.runtime.supervised import ACTORS, LIMITS, NODES, PATIENT, entry, given_up, launches, starts


@pytest.fixture
def core() -> Supervision:
    core = Supervision("root", "ipc://root", NODES, ACTORS, LIMITS, PATIENT)
    core.begin(0.0)
    return core


def test_the_beginning_launches_processes_and_starts_the_roots_own_actors():
    instructions = Supervision("root", "", NODES, ACTORS, LIMITS).begin(0.0)
    assert launches(instructions) == [("apart", 1)]
    assert starts(instructions) == [("here", 1)]
    assert Publish() in instructions


def test_actors_start_when_their_node_joins(core):
    assert starts(core.node_joined("apart", 1, "ipc://a", 1.0)) == [("there/0", 1), ("there/1", 1)]
    assert core.node_joined("apart", 1, "ipc://a", 1.0) == []  # told twice
    assert core.node_joined("apart", 7, "ipc://a", 1.0) == []
    assert core.node_joined("nobody", 1, "", 1.0) == []
    assert core.nodes_up() == ["root", "apart"]


def test_early_deaths_double_the_delay_up_to_its_bound_and_then_end_it(core):
    now, delays = 0.0, []
    for incarnation in (1, 2, 3):
        core.actor_failed("here", incarnation, "E: x", "trace", now)
        due = core.wake_at()
        delays.append(due - now)
        assert starts(core.tick(due - 0.01)) == []
        assert starts(core.tick(due)) == [("here", incarnation + 1)]
        now = due
    assert delays == [0.5, 1.0, 1.5]
    instructions = core.actor_failed("here", 4, "E: last", "its trace", now)
    assert instructions == [Publish(), GiveUp("here", 4, "E: last", "its trace")]
    assert entry(core, "here").final and entry(core, "here").reason == "E: last (death 4 in a row)"
    assert core.wake_at() > PATIENT.heartbeat and starts(core.tick(1e9)) == []


def test_a_death_that_is_not_early_is_followed_by_a_restart_at_once(core):
    core.actor_started("here", 1, (), 0.0)
    core.actor_failed("here", 1, "E: x", "trace", LIMITS.early_seconds)
    assert core.wake_at() == LIMITS.early_seconds
    assert starts(core.tick(LIMITS.early_seconds)) == [("here", 2)]


def test_deaths_that_requests_are_charged_with_never_give_an_actor_or_its_node_up():
    core = Supervision(
        "root", "ipc://root", NODES, ACTORS, RestartLimits(early_deaths_max=2, delay_first=0.0)
    )
    core.begin(0.0)
    for incarnation in range(1, 20):
        core.actor_started("here", incarnation, (), 0.0)
        assert given_up(core.actor_failed("here", incarnation, "E: poison", "", 0.0)) == []
        core.charged("here", 1)
        core.tick(0.0)
    for incarnation in range(1, 20):
        core.node_joined("apart", incarnation, "ipc://a", 0.0)
        core.actor_started("there/0", incarnation, (), 0.0)
        core.actor_started("there/1", incarnation, (), 0.0)
        assert given_up(core.node_exited("apart", incarnation, "signal 11", 0.0)) == []
        core.charged("there/0", 1)
        core.tick(0.0)
    core.charged("nobody", 1)


def test_what_was_up_once_may_fail_more_often_than_what_never_was():
    limits = RestartLimits(failed_starts_max=2, early_deaths_max=3, delay_first=0.0)
    for was_up, deaths in ((False, 2), (True, 3)):
        core = Supervision("root", "ipc://root", NODES, ACTORS, limits)
        core.begin(0.0)
        if was_up:
            core.actor_started("here", 1, (), 0.0)
        for incarnation in range(1, deaths):
            assert given_up(core.actor_failed("here", incarnation, "", "", 0.0)) == []
            core.tick(0.0)
        assert given_up(core.actor_failed("here", deaths, "", "", 0.0)) == ["here"]


def test_a_node_is_proven_when_all_its_actors_were_up():
    limits = RestartLimits(failed_starts_max=1, early_deaths_max=2, delay_first=0.0)
    for started, gives_up in ((("there/0",), True), (("there/0", "there/1"), False)):
        core = Supervision("root", "ipc://root", NODES, ACTORS, limits)
        core.begin(0.0)
        core.node_joined("apart", 1, "", 0.0)
        for name in started:
            core.actor_started(name, 1, (), 0.0)
        assert bool(given_up(core.node_exited("apart", 1, "killed", 0.0))) == gives_up


def test_a_late_death_wipes_out_the_early_ones(core):
    now = 0.0
    for incarnation in range(1, 20):
        if incarnation % 3 == 0:  # two early deaths, then a life that was long enough
            core.actor_started("here", incarnation, (), now)
            now += LIMITS.early_seconds
        assert given_up(core.actor_failed("here", incarnation, "", "", now)) == []
        now = core.wake_at()
        assert starts(core.tick(now)) == [("here", incarnation + 1)]


def test_a_death_just_after_readiness_is_early(core):
    for incarnation in range(1, 4):
        core.actor_started("here", incarnation, (), 0.0)
        core.actor_failed("here", incarnation, "", "", 4.9)
        core.tick(100.0)
    assert given_up(core.actor_failed("here", 4, "", "", 100.0)) == ["here"]


def test_a_death_is_counted_once_and_only_of_the_life_that_ended(core):
    core.actor_failed("here", 1, "", "", 0.0)
    assert core.actor_failed("here", 1, "", "", 0.0) == []
    assert core.actor_started("here", 1, (), 0.0) == []
    assert not entry(core, "here").up
    core.tick(100.0)
    assert core.actor_failed("here", 1, "", "", 0.0) == []
    assert core.actor_failed("nobody", 1, "", "", 0.0) == []


def test_a_node_takes_its_actors_down_and_brings_them_back(core):
    core.node_joined("apart", 1, "ipc://1", 0.0)
    core.actor_started("there/0", 1, ("f",), 0.0)
    instructions = core.node_exited("apart", 1, "killed", 100.0)
    assert instructions == [Publish()]
    assert core.nodes_up() == ["root"]
    assert (entry(core, "there/0").up, entry(core, "there/0").reason) == (False, "killed")
    assert core.node_exited("apart", 1, "again", 100.0) == []
    assert launches(core.tick(core.wake_at())) == [("apart", 2)]
    assert starts(core.node_joined("apart", 2, "ipc://2", 101.0)) == [("there/0", 2), ("there/1", 2)]


def test_a_successor_that_takes_its_node_down_gives_way_to_the_former(core):
    core.node_joined("apart", 1, "ipc://1", 0.0)
    for name in ("there/0", "there/1"):
        core.actor_started(name, 1, (), 0.0)
    plan = core.plan_of("there/0")
    core.swap(replace(plan, cls="m:Fatal"))
    core.node_exited("apart", 1, "killed", 100.0)
    core.tick(core.wake_at())
    core.node_joined("apart", 2, "ipc://2", 101.0)
    core.actor_started("there/0", 3, (), 101.0)
    assert core.plan_of("there/0") == plan


def test_what_was_amended_is_what_the_next_life_begins_with(core):
    core.actor_started("here", 1, (), 0.0)
    core.amend("here", lambda plan: replace(plan, options=b'{"a":1}'))
    assert core.planned("here").options == b'{"a":1}' and entry(core, "here").incarnation == 1
    core.actor_failed("here", 1, "died", "", 100.0)
    (start,) = [item for item in core.tick(core.wake_at()) if isinstance(item, Start)]
    assert (start.order.incarnation, start.order.options) == (2, b'{"a":1}')


def test_what_is_amended_while_a_successor_starts_holds_for_the_former_too(core):
    core.actor_started("here", 1, (), 0.0)
    core.swap(replace(core.planned("here"), cls="m:Other"))
    core.amend("here", lambda plan: replace(plan, options=b"{}2"))
    core.roll_back("here", "it was late")
    assert (core.planned("here").cls, core.planned("here").options) == ("m:C", b"{}2")


def test_facts_change_while_an_actor_is_up(core):
    assert core.actor_changed("here", 1, {"n": 1}) == [], "it is not up yet"
    core.actor_started("here", 1, (), 0.0, {"n": 0})
    assert core.actor_changed("here", 1, {"n": 1}) == [Publish()]
    assert entry(core, "here").facts == {"n": 1}
    assert core.actor_changed("here", 1, {"n": 1}) == core.actor_changed("here", 2, {"n": 2}) == []
    assert core.actor_changed("nobody", 1, {}) == []
    assert core.planned("nobody") is None


def test_what_a_dead_node_still_says_is_not_believed(core):
    core.node_joined("apart", 1, "", 0.0)
    core.node_exited("apart", 1, "killed", 0.0)
    assert core.actor_started("there/0", 1, (), 0.0) == []  # it was on its way
    assert core.actor_failed("there/1", 1, "", "", 0.0) == []
    core.tick(100.0)
    assert starts(core.node_joined("apart", 2, "", 100.0)) == [("there/0", 2), ("there/1", 2)]


def test_a_node_that_never_comes_up_is_given_up_with_its_actors(core):
    for incarnation in (1, 2, 3):
        assert given_up(core.node_exited("apart", incarnation, "exit 1", 0.0)) == []
        assert launches(core.tick(core.wake_at())) == [("apart", incarnation + 1)]
    assert given_up(core.node_exited("apart", 4, "exit 1", 0.0)) == ["there/0", "there/1"]
    assert entry(core, "there/0").final and core.wake_at() is None


def test_an_actor_that_waits_for_its_restart_falls_with_its_node(core):
    core.node_joined("apart", 1, "", 0.0)
    core.actor_failed("there/0", 1, "", "", 0.0)
    for incarnation in (1, 2, 3, 4):
        core.node_exited("apart", incarnation, "killed", 0.0)
        if incarnation < 4:
            core.tick(core.wake_at())
    assert entry(core, "there/0").final and entry(core, "there/1").final
    assert core.wake_at() is None


def test_only_a_node_that_is_to_join_by_itself_is_issued_an_incarnation(core):
    for nobody in ("apart", "nobody", "root"):
        assert core.issue(nobody, 0.0, gone=True) == 0
    assert core.issue("guest", 0.0, gone=True) == 1
    assert core.issue("guest", 0.1, gone=True) is None, "one is on its way"
    assert core.issue("guest", JOINING_SECONDS_MAX, gone=True) == 2, "which has not come"
    assert core.node_joined("guest", 1, "tcp://g", 11.0) == [], "it comes too late"
    assert starts(core.node_joined("guest", 2, "tcp://g", 11.0)) == [("visitor", 1)]
    assert core.node_joined("guest", 3, "tcp://x", 11.0) == []  # never issued


def test_a_guest_that_comes_again_replaces_its_former_life(core):
    core.node_joined("guest", core.issue("guest", 0.0, gone=True), "tcp://1", 0.0)
    core.actor_started("visitor", 1, (), 0.0)
    second = core.issue("guest", 8.0, gone=True)
    assert entry(core, "visitor").up  # asking is not joining
    assert starts(core.node_joined("guest", second, "tcp://2", 9.0)) == [("visitor", 2)]
    assert not entry(core, "visitor").up
    assert core.node_joined("guest", 1, "tcp://1", 9.0) == []


def test_nobody_takes_the_place_of_a_guest_that_may_be_alive_and_cut_off():
    core = impatient()
    core.renewed("apart", 1, 1.0)
    core.renewed("guest", 1, 1.0)
    assert core.issue("guest", 6.9, gone=False) is None, (
        "it may go on until 6, and an answer of ours may be late"
    )
    assert ticks(core, 7.0, renewing=("apart",)) == [Publish()]
    assert core.issue("guest", 7.0, gone=False) == 2, "now it has ended"


def test_directories_are_numbered(core):
    assert core.directory().version < core.directory().version


def impatient() -> Supervision:
    """Supervision in which everybody is up; processes are suspected after 5 s."""
    core = Supervision("root", "ipc://root", NODES, ACTORS, LIMITS, LeaseTerms(heartbeat=1.0, suspicion=5.0))
    core.begin(0.0)
    core.node_joined("apart", 1, "ipc://a", 0.0)
    assert core.issue("guest", 0.0, gone=True) == 1
    core.node_joined("guest", 1, "tcp://g", 0.0)
    for actor in ACTORS:
        core.actor_started(actor.name, 1, (), 0.0)
    return core


def ticks(core: Supervision, until: float, renewing: tuple[str, ...] = ()) -> list:
    """Time passes; some are heard of."""
    instructions, now = [], 0.0
    while (due := core.wake_at()) is not None and due <= until:
        now = max(now, due)
        for node in renewing:
            core.renewed(node, 1, now)
        instructions += core.tick(now)
    return instructions


def test_a_process_that_is_not_heard_of_is_killed_and_only_then_replaced():
    core = impatient()
    core.renewed("apart", 1, 1.0)
    core.renewed("guest", 1, 1.0)
    assert ticks(core, 20.0, renewing=("guest",)) == [Fence("apart", 1, "it was not heard of in time")]
    assert entry(core, "there/0").up, "it may be, until its process has ended"
    assert core.renewed("apart", 1, 20.0) is None, "it is too late for that"
    core.node_exited("apart", 1, "its process 7 was ended by signal 9", 20.0)
    assert not entry(core, "there/0").up
    assert entry(core, "there/0").reason == (
        "it was not heard of in time; its process 7 was ended by signal 9"
    )
    assert launches(core.tick(core.wake_at())) == [("apart", 2)]
    core.node_joined("apart", 2, "ipc://a", 21.0)
    assert core.renewed("apart", 1, 21.0) is None
    assert core.renewed("apart", 2, 21.0) == 30.0, "while its actors start"


def test_a_process_that_stops_as_soon_as_its_actors_are_up_is_not_waited_for_as_while_they_start():
    core = Supervision("root", "", NODES, ACTORS, LIMITS, LeaseTerms(heartbeat=1.0, suspicion=5.0))
    core.begin(0.0)
    core.node_joined("apart", 1, "ipc://a", 0.0)
    assert core.renewed("apart", 1, 0.0) == 30.0
    for actor in ("there/0", "there/1"):
        core.actor_started(actor, 1, (), 1.0)
    assert core.leases.until("apart") == 7.0


def test_a_guest_that_is_not_heard_of_is_gone_until_it_comes_again():
    core = impatient()
    core.renewed("apart", 1, 1.0)
    assert ticks(core, 40.0, renewing=("apart",)) == [Publish()]
    assert not entry(core, "visitor").up and core.nodes_up() == ["root", "apart"]
    assert core.renewed("guest", 1, 40.0) is None
    assert core.node_joined("guest", 1, "tcp://g", 40.0) == []
    assert core.issue("guest", 40.0, gone=False) == 2
    assert starts(core.node_joined("guest", 2, "tcp://g", 41.0)) == [("visitor", 2)]


def test_a_node_that_comes_after_it_was_given_up_for_lost_is_one_that_lives(core):
    late = core.leases.terms.starting + 2 * core.leases.terms.heartbeat
    core.tick(late)
    core.launched("apart", 1, late)  # its launcher took so long
    assert starts(core.node_joined("apart", 1, "ipc://a", late)) == [("there/0", 1), ("there/1", 1)]
    assert core.renewed("apart", 1, late + 1.0) is not None


def test_an_actor_that_was_given_up_is_swapped_for_another_and_its_deaths_do_not_count(core):
    core.actor_started("here", 1, (), 0.0)
    for incarnation in range(1, LIMITS.early_deaths_max + 1):
        core.actor_failed("here", incarnation, "E: x", "", 0.0)
        core.tick(1e9)
    assert entry(core, "here").final and core.plans_of("here") == []
    (plan,) = core.plans_of_down("here")
    life = LIMITS.early_deaths_max + 1
    assert starts(core.swap(replace(plan, cls="m:Other"))) == [("here", life)]
    assert not entry(core, "here").final
    assert given_up(core.actor_failed("here", life, "E: worse", "", 0.0)) == [], "the former returns"
    assert core.planned("here") == plan and core.plans_of_down("here") == []
    core.actor_started("here", life + 1, (), 0.0)
    assert core.plans_of("here") == [plan]
