"""The scheduler's core when others die, and how requests go on."""

from __future__ import annotations

import pytest

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.scheduler.core import BLOCKS, DETOKENIZER
from pageant.actors.scheduler.planning import UncachedShare
from pageant.actors.scheduler.policies import FairShare
from pageant.actors.scheduler.running import TOKENS_SENT_TOGETHER
from pageant.protocol.arrays import int32
from pageant.protocol.serving import Resumption
from tests.actors.scheduler.scene import END, FINAL, Scene


def behind(*tokens, age=0.0):
    return Resumption(token_ids=int32(tokens), age=age)


def test_after_the_executors_death_whoever_ran_computes_again_before_those_who_waited():
    scene = Scene(seqs=1).ready()
    scene.submit("a", [1, 2], max_tokens=4)
    scene.submit("b", [3, 4], max_tokens=1)
    scene.step()
    _, plan = scene.assign()
    scene.core.executor_gone(1)
    scene.compute(plan)  # too late
    assert scene.out(BLOCKS) == [] and scene.ends == {}
    scene.allocation = Allocation(BlockPool(16), 4)
    scene.ready(epoch=2)
    _, plan = scene.assign()
    (new,) = plan.new
    assert (plan.number, new.token_ids.tolist(), new.num_prompt_tokens) == (1, [1, 2, 7], 2)
    assert (plan.starts.tolist(), plan.num_tokens.tolist()) == ([0], [3])
    scene.compute(plan)
    assert {name: end.reason for name, end in scene.rest().items()} == {"a": "length", "b": "length"}
    assert scene.tokens["a"] == [7] * 4, "no token is told twice"
    assert scene.core.counters.recomputed == 1 and scene.ends["a"].num_preemptions == 0


def test_a_step_that_ran_ahead_is_forgotten_with_its_executor():
    scene = Scene(ahead=True).ready()
    scene.submit("a", [1, 2], max_tokens=5)
    scene.assign()
    scene.assign()  # the second step, planned while the first is computed
    assert len(scene.core.planner.computing) == 2
    scene.core.executor_gone(1)
    scene.core.check_integrity()
    scene.allocation = Allocation(BlockPool(16), 4)
    assert scene.ready(epoch=2).rest()["a"].reason == "length"
    assert scene.tokens["a"] == [7] * 5


def test_after_the_block_managers_death_rows_are_freed_and_whoever_ran_computes_again():
    scene = Scene(seqs=1).ready()
    scene.submit("a", [1, 2], max_tokens=3)
    scene.step()
    scene.out(BLOCKS)
    scene.core.pool_gone(1)
    assert scene.out(BLOCKS) == []
    scene.allocation = Allocation(BlockPool(16), 4)
    scene.core.pool_ready(1, manager=2)
    asked, plan = scene.assign()
    assert asked.freed.tolist() == [], "the new manager never had it"
    assert (plan.number, plan.freed_rows.tolist(), len(plan.new)) == (2, [0], 1)
    scene.compute(plan)
    assert scene.rest()["a"].reason == "length"
    assert scene.tokens["a"] == [7] * 3


def test_a_new_detokenizer_is_told_of_open_requests_and_those_that_ended_are_submitted_again():
    scene = Scene(seqs=2).ready()
    scene.submit("a", [1, 2], max_tokens=3)
    scene.submit("b", [3, 4], max_tokens=1)
    scene.step()
    scene.step()  # b ends, and its end is lost
    outbox = scene.core.take_outbox()
    scene.core.detokenizer_gone()
    scene.submit("a", [1, 2], max_tokens=3, resume=behind())
    scene.submit("b", [3, 4], max_tokens=1, resume=behind())
    (asked,) = (message for target, message in outbox if target == BLOCKS)
    scene.core.assigned(scene.allocation.assign(asked))
    assert {name: end.reason for name, end in scene.rest().items()} == {"a": "length", "b": "length"}
    assert scene.tokens == {"a": [7] * 3, "b": [7]}
    assert (scene.core.counters.resumed, scene.core.counters.reopened) == (1, 1), "one was known"


def test_what_nobody_looks_at_before_its_end_is_sent_in_pieces():
    scene = Scene().ready()
    scene.submit("a", [1, 2], max_tokens=20, **FINAL)
    seen = []
    for token in range(100, 120):
        _, plan = scene.assign()
        seen.append(len(scene.tokens.get("a", ())))
        scene.compute(plan, token)
    assert seen == [0, *[1] * TOKENS_SENT_TOGETHER, *[1 + TOKENS_SENT_TOGETHER] * (19 - TOKENS_SENT_TOGETHER)]
    assert scene.rest()["a"].num_output_tokens == 20 and scene.tokens["a"] == [*range(100, 120)]


def test_an_abort_brings_the_piece_that_was_not_sent():
    scene = Scene().ready()
    scene.submit("a", [1, 2], max_tokens=20, **FINAL)
    for token in (7, 8, 9):
        scene.step(token)
    scene.abort("a")
    assert scene.rest()["a"].reason == "abort" and scene.tokens["a"] == [7, 8, 9]


def test_a_new_detokenizer_is_sent_what_was_not_and_pieces_go_on_from_there():
    scene = Scene(num_blocks=6).ready()
    scene.submit("a", [1, 2], max_tokens=20, **FINAL)
    for token in (7, 8, 9):
        scene.step(token)
    (asked,) = scene.out(BLOCKS)
    assert scene.tokens["a"] == [7]
    scene.core.detokenizer_gone()
    scene.core.assigned(scene.allocation.assign(asked))
    scene.compute(scene.plan(), 6)
    assert scene.tokens["a"] == [7, 8, 9]
    assert scene.rest(5)["a"].reason == "length" and scene.tokens["a"] == [7, 8, 9, 6, *[5] * 16]


def test_a_preempted_request_is_sent_no_piece_twice():
    scene = Scene(num_blocks=7, seqs=2).ready()
    for name in ("a", "b"):
        scene.submit(name, [1, 2], max_tokens=18, **FINAL)
    assert {end.reason for end in scene.rest().values()} == {"length"}
    assert scene.core.counters.preemptions and scene.tokens == {"a": [7] * 18, "b": [7] * 18}


def test_a_resumed_request_goes_on_where_its_frontend_has_it():
    scene = Scene().ready()
    scene.submit("a", [1, 2], max_tokens=5, resume=behind(7, 8, age=3.0), now=10.0)
    (request,) = scene.core.requests
    assert request.arrived_at == 7.0
    asked, plan = scene.assign()
    assert asked.admissions[0].token_ids.tolist() == [1, 2, 7, 8]
    assert (plan.new[0].num_prompt_tokens, plan.draws.tolist()) == (2, [True])
    scene.compute(plan, 9)
    assert scene.rest(9)["a"].num_output_tokens == 5
    assert scene.tokens["a"] == [7, 8, 9, 9, 9]


def test_resumed_requests_stand_where_they_stood_whoever_brings_them_first():
    scene = Scene(seqs=1)
    scene.submit("new", [1], max_tokens=1, now=10.0)
    scene.submit("second", [1], max_tokens=1, resume=behind(age=1.0), now=10.0)
    scene.submit("first", [1], max_tokens=2, resume=behind(7, age=2.0), now=10.5)
    scene.ready()
    assert list(scene.rest()) == ["first", "second", "new"]


def test_a_resumed_request_passes_admission():
    scene = Scene(max_waiting_requests=1)
    scene.submit("a", [1], max_tokens=1)
    scene.submit("refused", [1], max_tokens=1)
    scene.submit("resumed", [1], max_tokens=1, resume=behind())
    ends = scene.ready().rest()
    assert {name: end.reason for name, end in ends.items()} == {
        "a": "length",
        "refused": "error",
        "resumed": "length",
    }


def test_what_a_resumed_request_has_had_is_on_its_tenants_account():
    policy = FairShare()
    scene = Scene(policy=policy)
    scene.submit("a", [1, 2, 3], tenant="t", max_tokens=9, resume=behind(7, 7), now=1.0)
    scene.submit("b", [1, 2, 3], tenant="u", max_tokens=9, resume=behind(), now=1.0)
    assert (policy.rank("t"), policy.rank("u")) == (3 + 2 * 2, 0)
    scene.ready()
    scene.assign()
    assert (policy.rank("t"), policy.rank("u")) == (7, 3), "its prompt is paid for once"


def test_nobody_pays_for_a_prompt_that_was_aborted_before_it_was_admitted():
    policy = FairShare()
    scene = Scene(policy=policy, num_blocks=4)
    scene.submit("a", [1] * 12, tenant="t", max_tokens=4)
    scene.submit("b", [2] * 12, tenant="u", max_tokens=4)
    (asked,) = scene.ready().out(BLOCKS)
    assert len(asked.admissions) == 2 and policy.rank("u") == 12
    scene.abort("b")
    granted = scene.allocation.assign(asked)
    assert len(granted.admitted) == 1, "there is no room for the other"
    scene.core.assigned(granted)
    assert policy.rank("u") == 0


def test_more_is_asked_for_where_prompts_turn_out_to_be_cached():
    share = UncachedShare()
    assert share.expected(1000) == 250, "nothing is known yet"
    for _ in range(20):
        share.saw(1000, 990)
    assert 10 <= share.expected(1000) <= 20 and share.expected(10) == 1
    for _ in range(20):
        share.saw(1000, 0)
    assert 950 <= share.expected(1000) <= 1000


def test_a_resumed_request_that_was_complete_ends_at_once():
    scene = Scene()
    scene.submit("a", [1, 2], max_tokens=2, resume=behind(7, 7))
    scene.submit("b", [1, 2], max_tokens=9, resume=behind(7, END), ignore_eos=False)
    scene.out(BLOCKS)
    assert {name: end.reason for name, end in scene.ends.items()} == {"a": "length", "b": "stop"}


def test_a_deadline_holds_across_a_restart():
    scene = Scene()
    scene.submit("a", [1, 2], deadline=0.0, resume=behind(7, age=9.0), now=20.0)
    assert scene.core.next_deadline == 20.0
    scene.core.expire(20.0)
    scene.out(BLOCKS)
    assert scene.ends["a"].cause == "deadline"


def die(scene, epoch):
    """The executor dies, and is back with an empty memory."""
    scene.core.executor_gone(epoch)
    scene.allocation = Allocation(BlockPool(scene.num_blocks), 4)
    scene.ready(epoch=epoch + 1, **scene.sizes)


def play_with_poison(scene, poisonous, deaths_max=20):
    """Goes on until everything has ended; the executor dies of each plan that computes such a row.

    Returns who was computed in the plans that it died of.
    """
    died_of, epoch, names = [], 1, {}
    while scene.core.num_running + scene.core.num_waiting or scene.core.planner.exchange is not None:
        dies = False
        for target, message in scene.core.take_outbox():
            if target == DETOKENIZER:
                scene.read(message)
            elif dies:
                continue
            elif target == BLOCKS:
                scene.core.assigned(scene.allocation.assign(message))
            else:
                names |= {new.row: int(new.token_ids[0]) for new in message.new}
                rows = [names[row] for row in message.rows.tolist()]
                dies = any(poisonous(*at) for at in zip(rows, message.starts.tolist(), strict=True))
                if dies:
                    died_of.append(sorted(rows))
                else:
                    scene.compute(message)
        if dies:
            assert len(died_of) < deaths_max
            die(scene, epoch)
            epoch, names = epoch + 1, {}
        scene.core.check_integrity()
    scene.rest()
    return died_of


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("position", [0, 3, 9])
def test_a_request_that_kills_its_executor_ends_with_an_error_and_the_others_go_on(ahead, position):
    scene = Scene(num_blocks=64, seqs=8, budget=64, ahead=ahead).ready(max_num_seqs=8)
    for name in range(1, 8):
        scene.submit(str(name), [name, 2, 3], max_tokens=20)
    died_of = play_with_poison(scene, lambda row, start: row == 7 and start >= position)
    assert len(died_of) == 3 and died_of[-1] == [7]
    assert scene.ends.pop("7").cause == "failure"
    assert {end.reason for end in scene.ends.values()} == {"length"}
    assert all(scene.tokens[name] == [7] * 20 for name in scene.ends)
    # At 9 the last prompt that is computed again comes a step later than the others, who have outlived it by then.
    assert scene.core.counters.suspects_tried == (6 if position < 9 else 0)


def test_two_that_kill_their_executor_are_both_found():
    scene = Scene(num_blocks=64, seqs=8).ready(max_num_seqs=8)
    for name in range(1, 8):
        scene.submit(str(name), [name, 2, 3], max_tokens=12)
    died_of = play_with_poison(scene, lambda row, start: row in (2, 6) and start >= 4)
    assert [rows for rows in died_of if len(rows) == 1] == [[2], [6]]
    assert {name for name, end in scene.ends.items() if end.reason == "error"} == {"2", "6"}


def compute_some(scene, count):
    """Compute so many steps; the next plan is out when it returns."""
    while count >= 0 and scene.core.num_running + scene.core.num_waiting:
        for target, message in scene.core.take_outbox():
            if target == BLOCKS:
                scene.core.assigned(scene.allocation.assign(message))
            elif target == DETOKENIZER:
                scene.read(message)
            elif count > 0:
                scene.compute(message)
                count -= 1
            else:
                return


@pytest.mark.parametrize(("tokens", "suspected"), [(1, True), (3, False)])
def test_deaths_that_a_request_has_outlived_are_forgiven(tokens, suspected):
    scene = Scene(num_blocks=64, budget=256, longest=256).ready(max_model_len=256)
    scene.submit("a", [1, 2], max_tokens=200)
    for epoch in (1, 2):
        compute_some(scene, tokens)
        die(scene, epoch)
    assert scene.rest()["a"].reason == "length"
    assert bool(scene.core.counters.suspects_tried) == suspected


def test_suspects_that_are_aborted_leave_the_quarantine():
    scene = Scene(seqs=4).ready()
    for name in (1, 2, 3):
        scene.submit(str(name), [name, 2, 3], max_tokens=12)
    for epoch in (1, 2):
        compute_some(scene, 1)
        die(scene, epoch)
    quarantine = scene.core.requests.waiting.quarantine
    assert len(quarantine) == 2 and quarantine.running_alone is not None
    scene.abort("1", "2")  # one is tried, and one waits for that
    scene.core.check_integrity()
    ends = scene.rest()
    assert {name: end.reason for name, end in ends.items()} == {"1": "abort", "2": "abort", "3": "length"}
    assert not quarantine.active
