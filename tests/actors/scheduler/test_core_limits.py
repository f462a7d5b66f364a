"""The scheduler's core under policies, deadlines and limits of its queue."""

from __future__ import annotations

from collections import Counter

import pytest

from pageant.actors.scheduler.core import BLOCKS
from pageant.actors.scheduler.policies import POLICIES, FairShare, FirstComeFirstServed, make_policy
from tests.actors.scheduler.scene import Scene


@pytest.mark.parametrize("fails", [False, True])
def test_a_policy_that_chooses_no_victim_is_logged_once_and_the_last_in_order_is_preempted(fails, caplog):
    class Inventing(FirstComeFirstServed):
        def victim(self, running):
            if fails:
                raise KeyError("a bug")
            return None

    scene = Scene(num_blocks=4, longest=16, policy=Inventing()).ready()
    scene.submit("a", [1, 2, 3, 4, 5, 6], max_tokens=9)
    scene.submit("b", [11, 12, 13, 14, 15], max_tokens=7)
    assert scene.rest().keys() == {"a", "b"}
    (record,) = caplog.records
    assert "Inventing chose no victim" in record.message


def test_order_is_asked_for_once_so_that_a_changing_answer_cannot_confuse_the_queue():
    class Changing(FirstComeFirstServed):
        def order(self, request):
            return (float(request.num_computed), float(len(request.output)))

    scene = Scene(num_blocks=5, longest=16, policy=Changing()).ready()
    for name in "abcd":
        scene.submit(name, [ord(name), 2, 3], max_tokens=9)
    assert scene.rest().keys() == set("abcd")


def test_a_scheduler_at_rest_says_nothing():
    scene = Scene().ready()
    scene.submit("a", [1], max_tokens=1)
    scene.rest()
    scene.core.acknowledged(99)
    scene.core.pool_ready(1, manager=1)
    scene.abort("a", "never heard of")
    assert scene.out(BLOCKS) == []
    assert not (scene.core.planner.exchange or scene.core.planner.computing)


def test_what_would_make_the_queue_too_long_is_refused_at_once():
    scene = Scene(max_waiting_requests=2, max_waiting_tokens=10)
    scene.submit("a", range(5))
    scene.submit("many tokens", range(6))
    scene.submit("b", range(5))
    scene.submit("c", [1])
    scene.out(BLOCKS)
    assert {name: end.cause for name, end in scene.ends.items()} == {
        "many tokens": "overload",
        "c": "overload",
    }
    assert "5 tokens are waiting already, and the prompt has 6" in scene.ends["many tokens"].message
    assert "max_waiting_requests is 2" in scene.ends["c"].message
    scene.ready()
    scene.rest()
    scene.submit("d", range(10), max_tokens=1)
    assert scene.rest()["d"].reason == "length"


def test_a_request_ends_when_its_deadline_passes_wherever_it_is():
    scene = Scene(seqs=1).ready()
    scene.submit("runs", [1, 2], now=1.0, deadline=4.0, max_tokens=9)
    scene.submit("waits", [3], now=1.0, deadline=2.0)
    scene.submit("ends before", [4], now=1.0, deadline=9.0, max_tokens=1)
    scene.step()
    assert scene.core.next_deadline == 3.0
    scene.core.expire(2.9)
    assert scene.core.num_waiting == 2
    scene.core.expire(5.0)
    scene.rest()
    assert {name: end.cause for name, end in scene.ends.items()} == {
        "waits": "deadline",
        "runs": "deadline",
        "ends before": None,
    }
    assert len(scene.tokens["runs"]) == 1, "the step that was under way counts no more"
    assert scene.core.next_deadline is None


def test_long_prompts_are_computed_one_after_another_while_short_ones_go_past():
    scene = Scene(budget=8, num_blocks=32, long_prefill_token_threshold=5).ready()
    for name in "ab":
        scene.submit(name, [ord(name)] * 12, max_tokens=1)
    scene.submit("short", [1, 2], max_tokens=1)
    plans = scene.go_on()
    assert [int(new.token_ids[0]) for plan in plans for new in plan.new] == [ord("a"), 1, ord("b")]
    assert [plan.num_tokens.tolist() for plan in plans][:3] == [[5], [5, 2], [2]]
    assert scene.rest().keys() == {"a", "b", "short"}


FAVOURED = {
    "fcfs": {},
    "priority": {"priority": -1},
    "shortest": {"max_tokens": 1},
    "fair": {"tenant": "greedy"},
    "deadline": {"deadline": 1.0},
}


@pytest.mark.parametrize("name", POLICIES)
def test_nobody_starves_however_many_others_are_favoured(name):
    scene = Scene(seqs=1, policy=make_policy(name), num_blocks=64).ready()
    scene.submit("first", [1], max_tokens=1)
    scene.submit("unlucky", [9] * 12, max_tokens=6, priority=1, tenant="modest")
    before = 0
    for index in range(3000):
        scene.submit(f"x{index}", [1, 2], now=0.05 * index, **({"max_tokens": 2} | FAVOURED[name]))
        scene.step()
        scene.core.expire(-1.0)
        if "unlucky" in scene.ends:
            break
        before = len(scene.ends)
    assert scene.ends["unlucky"].reason == "length", f"{before} others went past it"


@pytest.mark.parametrize("name", POLICIES)
def test_nobody_starves_though_memory_is_short_and_others_are_favoured(name):
    scene = Scene(seqs=4, policy=make_policy(name), num_blocks=7).ready()
    scene.submit("unlucky", [9] * 12, max_tokens=12, priority=1, tenant="modest")
    for index in range(3000):
        if index % 4 == 0:  # hardly more than can be served
            scene.submit(f"x{index}", [1, 2, 3], now=0.05 * index, **{"max_tokens": 9} | FAVOURED[name])
        scene.step()
        scene.core.expire(-1.0)
        if "unlucky" in scene.ends:
            break
    assert scene.ends["unlucky"].reason == "length", f"{len(scene.ends)} others went past it"
    if name in ("priority", "deadline"):  # by which who comes later may go first
        assert scene.ends["unlucky"].num_preemptions, "it was preempted on its way"


@pytest.mark.parametrize("name", sorted(FAVOURED.keys() - {"fcfs"}))
def test_a_policy_favours_whom_it_says(name):
    scene = Scene(seqs=1, policy=make_policy(name)).ready()
    scene.submit("runs", [1], max_tokens=1, tenant="modest")
    scene.submit("modest", [2] * 6, max_tokens=6, tenant="modest")
    scene.submit("favoured", [3], **({"max_tokens": 6} | FAVOURED[name]))
    order = [int(new.token_ids[0]) for plan in scene.go_on() for new in plan.new]
    assert order == [1, 3, 2]


def test_tenants_that_always_have_requests_get_equal_shares_whatever_their_lengths():
    scene = Scene(seqs=2, policy=make_policy("fair"), num_blocks=64).ready()
    served = Counter()
    for index in range(200):
        scene.submit(f"long {index}", range(9), max_tokens=9, tenant="long")
        for part in range(3):
            scene.submit(f"short {index} {part}", [index], max_tokens=2, tenant="short")
    for _ in range(600):
        scene.step()
    for name, end in scene.ends.items():
        tenant = name.split()[0]
        served[tenant] += (9 if tenant == "long" else 1) + FairShare.OUTPUT_WEIGHT * end.num_output_tokens
    assert served["long"] / served["short"] == pytest.approx(1, abs=0.1)


def test_a_tenant_that_was_away_has_not_saved_up_turns():
    policy = make_policy("fair")
    scene = Scene(seqs=1, policy=policy, num_blocks=64).ready()
    scene.submit("early", [1], max_tokens=1, tenant="away")
    scene.rest()
    for index in range(20):
        scene.submit(f"busy {index}", [2], max_tokens=4, tenant="busy")
    while scene.core.num_waiting > 10:
        scene.step()
    for index in range(5):
        scene.submit(f"away {index}", [3], max_tokens=4, tenant="away")
    ends = [name.split()[0] for name in scene.rest()]
    assert "busy" in ends[ends.index("away") :][:3], "it does not get five turns in a row"
    assert policy._counters.keys() <= {"away", "busy"} and not policy._open
