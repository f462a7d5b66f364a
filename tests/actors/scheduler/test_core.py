"""The scheduler's core, event by event: prefill, decode, ends, preemption and deaths."""

from __future__ import annotations

import math

import pytest

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.scheduler.backlog import Limits
from pageant.actors.scheduler.core import BLOCKS, DRAFTER, SchedulerCore
from pageant.actors.scheduler.policies import FirstComeFirstServed
from pageant.protocol.arrays import int32, int64
from pageant.protocol.drafting import Proposed, Speculation
from pageant.protocol.outputs import Stopped
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Submit
from pageant.protocol.stepping import ExecutorReady
from tests.actors.scheduler.scene import END, Scene, refuse


def test_a_request_is_prefilled_decoded_and_ended_by_length():
    scene = Scene().ready()
    scene.submit("a", [5, 6, 7], max_tokens=3)
    plan = scene.step()
    assert (plan.starts.tolist(), plan.num_tokens.tolist(), plan.draws.tolist()) == ([0], [3], [True])
    plan = scene.step()
    assert (plan.starts.tolist(), plan.num_tokens.tolist(), len(plan.new)) == ([3], [1], 0)
    ends = scene.rest()
    assert scene.tokens["a"] == [7, 7, 7]
    assert (ends["a"].reason, ends["a"].num_output_tokens) == ("length", 3)


@pytest.mark.parametrize(
    ("params", "reason", "stop_reason", "count"),
    [
        ({"ignore_eos": False}, "stop", None, 1),
        ({"stop_token_ids": (END,)}, "stop", END, 1),
        ({"max_tokens": 4}, "length", None, 4),
        ({"stop_token_ids": (END,), "min_tokens": 3}, "stop", END, 3),
    ],
)
def test_what_ends_a_request(params, reason, stop_reason, count):
    scene = Scene().ready()
    scene.submit("a", [5], **params)
    end = scene.rest(token=END)["a"]
    assert (end.reason, end.stop_reason, end.num_output_tokens) == (reason, stop_reason, count)


def test_a_long_prompt_is_computed_in_chunks_that_only_draw_at_its_end():
    scene = Scene(budget=5).ready()
    scene.submit("a", range(12), max_tokens=1)
    plans = [scene.step() for _ in range(3)]
    assert [plan.num_tokens.tolist() for plan in plans] == [[5], [5], [2]]
    assert [plan.draws.tolist() for plan in plans] == [[False], [False], [True]]
    assert scene.core.counters.chunk_splits == 2


def test_decodes_come_before_prefill_within_the_budget():
    scene = Scene(budget=6).ready()
    scene.submit("a", [1, 2], max_tokens=9)
    scene.step()
    scene.submit("b", range(10, 20), max_tokens=2)
    scene.step()  # was asked before b came
    plan = scene.step()
    assert plan.num_tokens.tolist() == [1, 5]
    assert plan.draws.tolist() == [True, False]


def test_no_more_requests_run_than_there_are_rows():
    scene = Scene(seqs=2).ready()
    for name in "abc":
        scene.submit(name, [1, ord(name)], max_tokens=2)
    scene.step()
    scene.step()
    assert scene.core.num_running <= 2
    assert scene.rest().keys() == {"a", "b", "c"}


def test_a_prompt_without_room_for_an_answer_ends_at_once_with_the_reason():
    scene = Scene(longest=8)
    scene.submit("long", range(8))
    scene.submit("none", [])
    scene.out(BLOCKS)
    assert "max_model_len of 8 at most 7" in scene.ends["long"].message
    assert "no tokens" in scene.ends["none"].message


def test_an_executor_with_less_room_bounds_what_waits_and_what_comes():
    scene = Scene()
    scene.submit("waits", range(9))
    scene.ready(max_model_len=8)
    scene.submit("comes", range(8))
    scene.submit("fits", range(5), max_tokens=None)
    scene.rest()
    assert "executor's memory of 8" in scene.ends["waits"].message
    assert "executor's memory of 8" in scene.ends["comes"].message
    assert scene.ends["fits"].num_output_tokens == 3


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_a_drafter_that_cannot_tell_how_long_it_took_harms_nobody(seconds):
    limits = Limits(4, 16, 32, frozenset({END}))
    scene = Scene()
    scene.core = core = SchedulerCore(
        FirstComeFirstServed(), limits, Speculation(method="ngram", adaptive=False), 1000
    )
    scene.ready()
    core.speculator.drafter_up()
    scene.submit("a", range(8), max_tokens=3)
    scene.step()
    proposals = [message for target, message in core.take_outbox() if target == DRAFTER]
    assert proposals
    none = {"counts": int32([0] * len(proposals[0].serials)), "token_ids": int32()}
    core.proposed(Proposed(number=proposals[0].number, seconds=seconds, **none))
    assert core.count()["drafter_microseconds"] == 0


@pytest.mark.parametrize("longest", range(9, 24))
def test_an_executor_with_less_room_ends_whoever_has_had_as_much(longest):
    scene = Scene().ready()
    scene.submit("a", range(8), max_tokens=20)
    for _ in range(13):
        scene.step()
    assert len(scene.tokens["a"]) == 12 and scene.core.num_running == 1
    scene.out(BLOCKS)
    scene.core.executor_gone(1, died=False)
    scene.allocation = Allocation(BlockPool(16), 4)
    scene.ready(epoch=2, max_model_len=longest)
    ended = scene.rest()["a"]
    assert ended.reason == "length"
    assert ended.num_output_tokens == len(scene.tokens["a"]) == max(13, min(longest, 28) - 8)


def test_the_same_request_sent_twice_is_served_once():
    scene = Scene().ready()
    scene.submit("a", [1], max_tokens=1)
    scene.submit("a", [1], max_tokens=1)
    scene.rest()
    assert scene.core.counters.submitted == 1


def test_a_stop_string_ends_a_request_without_a_terminal_message_of_ours():
    scene = Scene().ready()
    scene.submit("a", [1, 2], max_tokens=9)
    _, plan = scene.assign()
    scene.core.stopped(Stopped(serials=int64([1]), num_output_tokens=int32([1])))
    scene.compute(plan)
    assert scene.rest() == {}
    assert scene.core.counters.stops_by_string == 1


def test_who_came_last_is_preempted_and_resumes_with_what_it_had():
    scene = Scene(num_blocks=4, longest=16).ready()
    scene.submit("a", [1, 2, 3, 4, 5, 6], max_tokens=9)
    scene.submit("b", [11, 12, 13, 14, 15], max_tokens=7)
    scene.rest()
    assert scene.core.counters.preemptions >= 1
    assert scene.ends["a"].num_preemptions == 0
    assert scene.ends["b"].num_preemptions >= 1
    assert {name: len(tokens) for name, tokens in scene.tokens.items()} == {"a": 9, "b": 7}


def test_a_stop_or_an_abort_of_a_preempted_request_takes_it_from_the_queue():
    for end in ("stop", "abort"):
        scene = Scene(num_blocks=4, longest=16).ready()
        scene.submit("a", [1, 2, 3, 4, 5, 6], max_tokens=9)
        scene.submit("b", [11, 12, 13, 14, 15], max_tokens=7)
        while not scene.core.counters.preemptions:
            scene.step()
        if end == "abort":
            scene.abort("b")
            assert scene.core.counters.aborts_preempted == 1
        else:
            scene.core.stopped(Stopped(serials=int64([2]), num_output_tokens=int32([1])))
        assert scene.core.num_waiting == 0
        scene.rest()
        assert len(scene.tokens["a"]) == 9


def test_nobody_overtakes_a_request_that_does_not_fit_yet():
    scene = Scene(num_blocks=4, longest=16).ready()
    scene.submit("a", range(9), max_tokens=4)
    scene.step()
    scene.submit("large", range(20, 29), max_tokens=1)
    scene.submit("small", [30], max_tokens=1)
    admitted = [int(new.token_ids[0]) for plan in scene.go_on() for new in plan.new]
    assert admitted == [20, 30]
    assert scene.core.counters.admissions_refused > 0


def test_while_the_pool_is_full_only_the_first_in_the_queue_is_asked_for():
    scene = Scene(num_blocks=4, longest=16).ready()
    scene.submit("a", range(9), max_tokens=4)
    scene.step()
    for index in range(5):
        scene.submit(f"w{index}", range(20 * index + 20, 20 * index + 29), max_tokens=1)
    scene.step()
    asked, plan = scene.assign()
    assert len(asked.admissions) == 3, "as many as there are rows"
    scene.compute(plan)
    asked, _ = scene.assign()
    assert len(asked.admissions) == 1


def test_a_manager_that_refuses_for_no_reason_ends_the_request_instead_of_a_busy_loop():
    scene = Scene().ready()
    scene.submit("a", [1, 2, 3], max_tokens=1)
    refuse(scene)
    assert scene.out(BLOCKS) == []
    assert "refuses the 3 tokens of this request while 16 of 16 blocks are free" in scene.ends["a"].message


def test_a_refusal_about_another_epoch_is_no_judgement():
    scene = Scene().ready()
    scene.submit("a", [1, 2, 3], max_tokens=1)
    refuse(scene, epoch=9)
    assert scene.out(BLOCKS) == [], "it waits for the news"
    assert not scene.ends
    scene.core.pool_ready(1, manager=2)
    assert scene.rest()["a"].reason == "length"


def test_requests_are_charged_with_a_death_that_they_were_computed_at_and_with_no_other():
    scene = Scene().ready()
    assert not scene.core.executor_gone(1), "it computed nothing"
    scene = Scene().ready()
    scene.submit("a", range(8), max_tokens=20)
    scene.step()
    scene.assign()
    assert scene.core.executor_gone(1), "it computed a step"
    assert not scene.core.executor_gone(1), "once is enough"


def test_nobody_is_charged_with_the_end_of_an_executor_that_was_swapped():
    scene = Scene().ready()
    scene.submit("a", range(8), max_tokens=20)
    scene.assign()
    assert not scene.core.executor_gone(1, died=False)


def test_late_news_of_a_death_does_not_harm_the_successor():
    scene = Scene().ready(epoch=1)
    scene.ready(epoch=2)
    scene.core.executor_gone(1)
    scene.core.executor_ready(
        ExecutorReady(
            epoch=1, num_blocks=1, block_size=1, max_num_seqs=1, max_model_len=1, device="", dtype=""
        )
    )
    scene.submit("a", [1, 2, 3, 4, 5, 6], max_tokens=1)
    assert scene.rest()["a"].reason == "length"


def test_an_executor_that_is_known_to_be_dead_is_not_taken_for_alive():
    scene = Scene()
    scene.core.executor_gone(1)
    scene.ready(epoch=1)
    scene.submit("a", [1], max_tokens=1)
    assert scene.out(BLOCKS) == []


def test_the_death_of_a_frontend_aborts_its_own_requests_only():
    scene = Scene().ready()
    scene.submit("a", [1], max_tokens=1)
    scene.core.submit(
        Submit(
            request_id="x",
            frontend="g",
            prompt_token_ids=int32([1]),
            params=SamplingParams(temperature=0.0, max_tokens=1),
        )
    )
    scene.core.frontend_gone("g")
    ends = scene.rest()
    assert (ends["a"].reason, ends["x"].reason) == ("length", "abort")
