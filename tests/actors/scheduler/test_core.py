"""The scheduler's core, event by event."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.scheduler.backlog import Limits
from pageant.actors.scheduler.core import BLOCKS, DETOKENIZER, DRAFTER, EXECUTOR, SchedulerCore
from pageant.actors.scheduler.planning import UncachedShare
from pageant.actors.scheduler.policies import POLICIES, FairShare, FirstComeFirstServed, make_policy
from pageant.actors.scheduler.running import TOKENS_SENT_TOGETHER
from pageant.protocol.allocation import Assigned
from pageant.protocol.arrays import int32, int64
from pageant.protocol.drafting import Proposed, Speculation
from pageant.protocol.outputs import Stopped
from pageant.protocol.sampling import RequestOutputKind, SamplingParams
from pageant.protocol.serving import Abort, Resumption, Submit
from pageant.protocol.stepping import CutShort, ExecutorReady, LateTokens, StepResult
from pageant.protocol.structured_outputs import StructuredOutputsParams

END = 2


class Scene:
    """A scheduler, a pool, and whoever else is needed, moved by hand."""

    def __init__(self, *, num_blocks=16, seqs=4, budget=16, longest=32, policy=None, ahead=False, **limits):
        limits = Limits(seqs, budget, longest, frozenset({END}), async_scheduling=ahead, **limits)
        self.core = SchedulerCore(policy or FirstComeFirstServed(), limits)
        self.num_blocks = num_blocks
        self.allocation = Allocation(BlockPool(num_blocks), 4)
        self.ahead = ahead
        self.told = defaultdict(list)
        self.ends = {}
        self.names = {}
        self.tokens = {}

    def ready(self, epoch=1, **changes):
        sizes = {"num_blocks": self.num_blocks, "block_size": 4, "max_num_seqs": 4, "max_model_len": 32}
        self.sizes = sizes | changes
        self.core.executor_ready(ExecutorReady(epoch=epoch, device="", dtype="", **self.sizes))
        self.core.pool_ready(epoch, manager=1)
        return self

    def submit(self, name, prompt, *, now=0.0, priority=0, tenant="", deadline=None, resume=None, **params):
        params = SamplingParams(**({"temperature": 0.0, "ignore_eos": True} | params))
        self.core.submit(
            Submit(
                request_id=name,
                frontend="f",
                prompt_token_ids=int32(prompt),
                params=params,
                priority=priority,
                tenant=tenant,
                deadline=deadline,
                resume=resume,
            ),
            now,
        )

    def abort(self, *names):
        self.core.abort(Abort(frontend="f", request_ids=names))

    def out(self, address):
        """The messages for one of the others; what is for the detokenizer is read at once."""
        for target, message in self.core.take_outbox():
            if target == DETOKENIZER:
                self.read(message)
            else:
                self.told[target].append(message)
                assert self.ahead or target == address, f"{target} is told {message}"
        self.core.check_integrity()
        return self.told.pop(address, [])

    def read(self, batch):
        for opened in batch.opened:
            self.names[opened.serial] = opened.request_id
            self.tokens[opened.request_id] = opened.token_ids.tolist()
        position = 0
        for index, (serial, count) in enumerate(zip(batch.serials.tolist(), batch.counts.tolist())):  # noqa: B905
            self.tokens[self.names[serial]] += batch.token_ids.tolist()[position : position + count]
            position += count
            if index in batch.finished:
                assert self.names[serial] not in self.ends
                self.ends[self.names[serial]] = batch.finished[index]
        self.core.acknowledged(batch.number)

    def assign(self):
        """Lets the block manager answer; returns what it was asked and the plan, if there is one."""
        (asked,) = self.out(BLOCKS)
        computing = len(self.core.planner.computing)
        self.core.assigned(self.allocation.assign(asked))
        self.allocation.check_integrity()
        return asked, self.plan() if len(self.core.planner.computing) > computing else None

    def plan(self):
        (plan,) = self.out(EXECUTOR)
        return plan

    def compute(self, plan, token=7, **told):
        """Answers a plan, with this token for each, or with those given."""
        rows = plan.rows[plan.draws]
        steps = told.get("num_steps", plan.num_steps)
        drawn = token if isinstance(token, list) else [token] * (steps * len(rows))
        self.core.stepped(
            StepResult(
                number=plan.number,
                epoch=plan.epoch,
                rows=rows,
                token_ids=int32(drawn),
                **{"seconds": 0.0, "num_steps": steps} | told,
            )
        )

    def late(self, plan, row, token=7):
        """The token comes that a plan draws for a row."""
        late = LateTokens(number=plan.number, epoch=plan.epoch, rows=int32([row]), token_ids=int32([token]))
        self.core.late_tokens(late)

    def step(self, token=7):
        _, plan = self.assign()
        if plan is not None:
            self.compute(plan, token)
        return plan

    def go_on(self, token=7, read=True):
        """Goes on until there is nothing to do; returns the plans. Unread batches are not acknowledged."""
        plans = []
        for _ in range(500):
            messages = self.core.take_outbox()
            if not messages:
                return plans
            for target, message in messages:
                if target == BLOCKS:
                    self.core.assigned(self.allocation.assign(message))
                elif target == EXECUTOR:
                    plans.append(message)
                    self.compute(message, token)
                elif read:
                    self.read(message)
            self.core.check_integrity()
        raise AssertionError("the scheduler does not come to rest")

    def plans(self):
        """All plans that are made now."""
        made = []
        while asked := self.out(BLOCKS):
            self.core.assigned(self.allocation.assign(asked[0]))
            made += self.out(EXECUTOR)
        return made

    def prefill(self):
        """Computes the first plan; returns those that are at hand then."""
        first, *others = self.plans()
        self.compute(first)
        return others + self.plans()

    def run_on(self, plans):
        """Computes these, and whatever is planned meanwhile."""
        plans = [*plans]
        while plans:
            self.compute(plans.pop(0))
            plans += self.plans()

    def rest(self, token=7):
        """Goes on until there is nothing to do, and nothing is held; returns how the requests ended."""
        self.go_on(token)
        assert self.allocation.statistics().blocks_held == 0
        return self.ends


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


@pytest.mark.parametrize(("seconds", "ahead"), [(0.004, 2), (0.006, 1)])
def test_short_steps_are_planned_two_ahead(seconds, ahead):
    scene = Scene(ahead=True, short_step_seconds=0.005).ready()
    scene.submit("a", [5, 6, 7], max_tokens=9)
    _, first = scene.assign()
    _, second = scene.assign()
    assert not scene.out(BLOCKS), "nobody knows how long steps are"
    scene.compute(first, seconds=seconds)
    plans = [second, *scene.plans()]
    assert [plan.starts.tolist() for plan in plans] == [[3], [4], [5]][: 1 + ahead]
    scene.run_on(plans)
    assert scene.ends["a"].num_output_tokens == 9
    assert scene.core.counters.rows_wasted == 0, "an end by length is known before"


def test_what_was_void_while_more_of_its_row_was_asked_for_is_computed_again():
    scene = Scene(longest=40, ahead=True, short_step_seconds=1.0).ready(max_model_len=40)
    scene.submit("a", [5, 6, 7], max_tokens=9)
    _, first = scene.assign()
    _, second = scene.assign()
    scene.compute(first)
    _, third = scene.assign()
    (asked,) = scene.out(BLOCKS)
    scene.compute(second, deferred=(0,))
    scene.compute(third, void=(0,))
    scene.core.assigned(scene.allocation.assign(asked))
    fourth = scene.plan()
    scene.late(second, 0)
    assert not scene.out(BLOCKS), "a step names the row"
    scene.compute(fourth, void=(0,))
    _, plan = scene.assign()
    assert plan.starts.tolist() == third.starts.tolist()
    scene.run_on([plan])
    assert scene.ends["a"].num_output_tokens == len(scene.tokens["a"]) == 9


def test_a_row_whose_late_token_has_come_does_not_wait_for_anothers():
    scene = Scene(num_blocks=10, longest=40, budget=64, ahead=True).ready(max_model_len=40)
    scene.submit("a", range(1, 17), max_tokens=16)
    scene.submit("b", range(21, 37), max_tokens=16)
    _, first = scene.assign()
    scene.submit("waits", range(41, 61), max_tokens=16)
    _, second = scene.assign()
    scene.compute(first)
    _, third = scene.assign()
    scene.compute(second, deferred=(0, 1))
    while asked := scene.out(BLOCKS):
        scene.core.assigned(scene.allocation.assign(asked[0]))
    scene.compute(third, void=(0, 1))
    while asked := scene.out(BLOCKS):
        scene.core.assigned(scene.allocation.assign(asked[0]))
    assert not scene.told[EXECUTOR], "all that run wait for their tokens, and there is no room for more"
    scene.late(second, 0)
    _, plan = scene.assign()
    assert plan.rows.tolist() == [0]


def test_a_row_whose_late_token_came_while_its_growth_was_asked_for_goes_on_if_that_is_refused():
    scene = Scene(num_blocks=10, longest=40, budget=64, ahead=True).ready(max_model_len=40)
    scene.submit("a", range(1, 18), max_tokens=16)
    _, plan = scene.assign()
    scene.submit("b", range(21, 40), max_tokens=16)
    plans = [plan]
    while plans[-1].starts.tolist() != [19, 19]:
        plans += [plan for _, plan in [scene.assign()] if plan is not None]
        if len(plans) > 1 and plans[-1].starts.tolist() != [19, 19]:
            scene.compute(plans[-2])
    scene.compute(plans[-2])
    (asked,) = scene.out(BLOCKS)
    scene.compute(plans[-1], deferred=(0,))
    scene.late(plans[-1], 0)
    scene.core.assigned(scene.allocation.assign(asked))
    scene.rest()
    assert {name: len(tokens) for name, tokens in scene.tokens.items()} == {"a": 16, "b": 16}


def test_a_row_that_failed_ends_though_its_mask_was_late():
    scene = Scene().ready()
    scene.submit("a", range(3), max_tokens=4)
    _, plan = scene.assign()
    scene.compute(plan, failed={0: "its processor raised"}, deferred=(0,))
    ended = scene.rest()["a"]
    assert (ended.reason, ended.message) == ("error", "its processor raised")


def test_the_same_request_sent_twice_is_served_once():
    scene = Scene().ready()
    scene.submit("a", [1], max_tokens=1)
    scene.submit("a", [1], max_tokens=1)
    scene.rest()
    assert scene.core.counters.submitted == 1


def test_an_abort_while_assigning_still_computes_what_was_granted():
    scene = Scene().ready()
    scene.submit("a", range(8), max_tokens=2)
    (asked,) = scene.out(BLOCKS)
    scene.abort("a")
    assert scene.core.counters.aborts_asked == 1
    scene.core.assigned(scene.allocation.assign(asked))
    plan = scene.plan()
    assert plan.num_tokens.tolist() == [8], "its blocks are named by now, and others may match them"
    scene.submit("b", range(9), max_tokens=1)
    scene.compute(plan)
    scene.rest()
    assert (scene.ends["a"].reason, scene.tokens["a"]) == ("abort", [])
    assert scene.ends["b"].num_cached_tokens == 8


def test_an_abort_while_computing_frees_the_row_only_afterwards():
    scene = Scene(seqs=1).ready()
    scene.submit("a", [1, 2], max_tokens=9)
    _, plan = scene.assign()
    scene.abort("a")
    scene.submit("b", [3], max_tokens=1)
    assert scene.out(BLOCKS) == []
    scene.compute(plan)
    _, plan = scene.assign()
    assert plan.freed_rows.tolist() == [0]
    assert [new.row for new in plan.new] == [0]
    scene.compute(plan)
    scene.rest()
    assert scene.tokens == {"a": [], "b": [7]}


def test_the_next_step_is_planned_while_one_is_computed():
    scene = Scene(ahead=True).ready()
    scene.submit("a", [5, 6, 7], max_tokens=3)
    _, first = scene.assign()
    _, second = scene.assign()
    assert (second.starts.tolist(), second.num_tokens.tolist(), second.draws.tolist()) == ([3], [1], [True])
    assert scene.out(BLOCKS) == [], "no more than two"
    scene.compute(first, token=8)
    _, third = scene.assign()
    assert third.starts.tolist() == [4]
    scene.compute(second, token=9)
    assert scene.out(BLOCKS) == [], "what is being drawn is its last token"
    scene.compute(third, token=10)
    assert (scene.rest()["a"].reason, scene.tokens["a"]) == ("length", [8, 9, 10])
    assert (scene.core.counters.steps_ahead, scene.core.counters.rows_wasted) == (2, 0)


def test_a_request_that_ended_meanwhile_costs_one_row_and_keeps_its_blocks_until_then():
    scene = Scene(ahead=True).ready()
    scene.submit("a", [5, 6, 7], max_tokens=9, ignore_eos=False)
    _, first = scene.assign()
    _, second = scene.assign()
    scene.compute(first, token=END)
    assert scene.core.num_running == 0
    assert scene.out(BLOCKS) == [], "its blocks are still written to"
    scene.compute(second)
    asked, plan = scene.assign()
    assert (asked.freed.tolist(), plan) == ([1], None)
    assert (scene.ends["a"].reason, scene.tokens["a"]) == ("stop", [END])
    assert scene.core.counters.rows_wasted == 1


def test_while_a_step_is_computed_the_block_manager_is_not_asked_again_in_vain():
    scene = Scene(num_blocks=4, longest=16, ahead=True).ready()
    scene.submit("a", range(14), max_tokens=2)
    scene.submit("b", range(20, 30), max_tokens=1)
    _, first = scene.assign()
    _, second = scene.assign()
    scene.compute(first)
    asked, plan = scene.assign()
    assert ([one.serial for one in asked.admissions], plan) == ([2], None)
    assert scene.out(BLOCKS) == [], "nothing can have changed"
    scene.compute(second)
    assert scene.rest().keys() == {"a", "b"}


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


def refuse(scene, epoch=1):
    (asked,) = scene.out(BLOCKS)
    scene.core.assigned(
        Assigned(
            step=asked.step,
            epoch=epoch,
            num_grown=0,
            grown_counts=int32(),
            grown_blocks=int32(),
            admitted=(),
            blocks_free=16,
            num_blocks=16,
        )
    )


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


def test_without_credit_no_step_begins():
    scene = Scene().ready()
    scene.core.outputs.stream.credit = 1
    scene.submit("a", [1, 2], max_tokens=9)
    assert len(scene.go_on(read=False)) == 2, "one step is under way when the credit is used up"
    assert not (scene.core.planner.exchange or scene.core.planner.computing)
    assert scene.allocation.statistics().blocks_held == 1


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


def test_a_policy_that_invents_a_victim_is_told_so():
    class Inventing(FirstComeFirstServed):
        def victim(self, running):
            return None

    scene = Scene(num_blocks=4, longest=16, policy=Inventing()).ready()
    scene.submit("a", [1, 2, 3, 4, 5, 6], max_tokens=9)
    scene.submit("b", [11, 12, 13, 14, 15], max_tokens=7)
    with pytest.raises(ValueError, match=r"Inventing.victim returned None"):
        scene.rest()


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


# What dies, and how requests go on.


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


FINAL = {"output_kind": RequestOutputKind.FINAL_ONLY}


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


# Plans of several steps.


def several(steps=4, longest=56, **changes):
    """A scene whose executor takes plans of so many steps."""
    scene = Scene(ahead=True, longest=longest, max_steps_per_plan=steps, **changes)
    return scene.ready(multi_step=True, max_model_len=longest)


def test_while_nobody_waits_plans_are_of_several_steps_up_to_the_first_end():
    scene = several()
    scene.submit("a", [5, 6, 7], max_tokens=20, **FINAL)
    scene.submit("b", [5, 6, 7], max_tokens=12, **FINAL)
    plans = scene.go_on()
    assert [plan.num_steps for plan in plans] == [1, 1, 4, 4, 3, 4, 3]
    assert [plan.starts.tolist() for plan in plans[2:]] == [[4, 3], [8, 7], [12, 11], [15], [19]]
    assert all(plan.num_tokens.tolist() == [1] * len(plan.rows) for plan in plans[2:])
    assert scene.tokens == {"a": [7] * 20, "b": [7] * 12} and scene.rest().keys() == {"a", "b"}
    counters = scene.core.counters
    assert (counters.steps, counters.steps_together, counters.rows_wasted) == (20, 18, 0)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {**FINAL, "stop": ("x",)},
        {**FINAL, "logprobs": 1},
        {**FINAL, "frequency_penalty": 0.5},
        {**FINAL, "structured_outputs": StructuredOutputsParams(regex="a*")},
    ],
    ids=lambda params: max(params, default="streamed"),
)
def test_who_must_know_of_each_token_has_all_go_step_by_step(params):
    scene = several()
    scene.submit("a", [5, 6, 7], max_tokens=9, **FINAL)
    scene.submit("b", [5, 6, 7], max_tokens=9, **params)
    assert {plan.num_steps for plan in scene.go_on()} == {1}


def test_an_executor_that_says_nothing_of_several_steps_gets_one_at_a_time():
    scene = Scene(ahead=True, max_steps_per_plan=4).ready()
    scene.submit("a", [5, 6, 7], max_tokens=9, **FINAL)
    assert {plan.num_steps for plan in scene.go_on()} == {1}


def test_who_comes_has_plans_of_several_steps_cut_short_and_what_was_not_computed_comes_again():
    scene = several()
    scene.submit("a", [5, 6, 7], max_tokens=20, **FINAL)
    plans = scene.prefill()
    assert [(plan.num_steps, plan.continues) for plan in plans] == [(4, False), (4, True)]
    scene.submit("b", [8, 9], max_tokens=4, **FINAL)
    assert [(type(cut), cut.number) for cut in scene.out(EXECUTOR)] == [(CutShort, plans[-1].number)]
    assert not scene.plans(), "nothing comes before it is known how far they came"
    scene.submit("c", [1], max_tokens=1, **FINAL)
    assert not scene.out(EXECUTOR), "they are told once"
    scene.compute(plans[0], [11, 12], num_steps=2)
    assert not scene.plans()
    scene.compute(plans[1], num_steps=0)
    plan, *others = scene.plans()
    assert plan.starts.tolist() == [5, 0, 0] and not plan.continues
    assert len(plan.new) == 2
    scene.compute(plan, 13)
    scene.run_on(others + scene.plans())
    scene.rest()
    assert scene.tokens["a"] == [7, 11, 12, 13, *[7] * 16]
    assert (len(scene.tokens["b"]), scene.tokens["c"]) == (4, [13])
    assert scene.core.counters.plans_cut == 1


def test_when_the_last_one_is_gone_plans_of_several_steps_are_cut_short():
    scene = several()
    scene.submit("a", [5, 6, 7], max_tokens=20, **FINAL)
    scene.submit("b", [5, 6, 7], max_tokens=20, **FINAL)
    first, *plans = scene.prefill()
    scene.compute(first)
    plans += scene.plans()
    assert [plan.num_steps for plan in plans] == [4, 4]
    scene.abort("a")
    assert not scene.out(EXECUTOR), "they go on for the other"
    scene.abort("b")
    assert [(type(cut), cut.number) for cut in scene.out(EXECUTOR)] == [(CutShort, plans[-1].number)]
    scene.compute(plans[0], num_steps=1)
    scene.compute(plans[1], num_steps=0)
    scene.submit("c", [1, 2], max_tokens=3, **FINAL)
    scene.run_on(scene.plans())
    scene.rest()
    assert scene.tokens["c"] == [7] * 3


def test_of_what_was_not_computed_nothing_is_found_by_others():
    """A block of four is full with the token that was drawn last, and not computed."""
    scene = several()
    scene.submit("a", [5, 6], max_tokens=20, **FINAL)
    plans = scene.prefill()
    scene.submit("b", [5, 6, 7, 11, 12], max_tokens=1)
    scene.compute(plans[0], [11], num_steps=1)
    scene.abort("a")
    scene.compute(plans[1], num_steps=0)
    assert len(scene.out(EXECUTOR)) == 1, "a word to cut them short"
    asked, plan = scene.assign()
    assert asked.withdrawn_lengths.tolist() == [3, 6]
    assert plan.starts.tolist() == [3], "of its fourth token nothing was computed"


def test_who_ends_with_the_last_token_of_a_plan_leaves_no_block_that_the_next_was_to_fill():
    """End one of two requests in the first steps, and the other with the last of a plan. The executor takes that for
    the end of all: the plan that continues it is not computed, nor then the token that was drawn last."""
    scene = several(num_blocks=40)
    scene.submit("a", [5, 6], ignore_eos=False, max_tokens=30, **FINAL)
    scene.submit("b", [8, 9], ignore_eos=False, max_tokens=30, **FINAL)
    made = scene.plans()
    while made[0].num_steps == 1:
        scene.compute(made.pop(0), 11)
        made += scene.plans()
    first, second = made
    a, b = (first.rows.tolist().index(request.held_row) for request in scene.core.requests.running)
    drawn = np.full((4, 2), 12)
    drawn[0, b] = END
    scene.compute(first, drawn.ravel().tolist())
    (third,) = scene.plans()
    drawn = np.full((4, 2), 13)
    drawn[3, a] = END
    scene.compute(second, drawn.ravel().tolist())
    assert third.continues and third.rows.tolist() == [first.rows[a]]
    made = scene.plans()
    scene.compute(third, num_steps=0)
    made += scene.plans()
    answer = [5, 6, *scene.tokens["a"]]
    assert answer[-1] == END and len(answer) % 4 == 0 and not made
    scene.submit("c", [*answer, 1, 1, 1, 1, 1], max_tokens=1)
    plan = next(plan for plan in scene.plans() if plan.new)
    assert plan.starts.tolist() == [len(answer) - 1], "nothing was computed of the last token"


def test_tokens_that_end_a_request_within_a_plan_are_its_last():
    scene = several(steps=8)
    scene.submit("a", [5, 6, 7], ignore_eos=False, max_tokens=30, **FINAL)
    plans = scene.prefill()
    scene.compute(plans[0], [11, 12, END], num_steps=3)
    scene.compute(plans[1], num_steps=0)
    end = scene.rest()["a"]
    assert (end.reason, scene.tokens["a"]) == ("stop", [7, 11, 12, END])


def test_where_blocks_are_short_a_plan_is_of_one_step():
    scene = several(num_blocks=2, steps=8)
    scene.submit("a", [5, 6, 7], max_tokens=5, **FINAL)
    plans = scene.go_on()
    assert {plan.num_steps for plan in plans} == {1} and scene.tokens["a"] == [7] * 5
    assert scene.core.counters.preemptions == 0


def test_a_request_goes_on_elsewhere_when_its_executor_dies_within_a_plan_of_several_steps():
    scene = several()
    scene.submit("a", [5, 6, 7], max_tokens=20, **FINAL)
    scene.prefill()
    scene.core.executor_gone(1)
    scene.core.pool_gone(1)
    scene.allocation.release_all()
    scene.ready(epoch=2, multi_step=True, max_model_len=56)
    scene.rest()
    assert scene.tokens["a"] == [7] * 20 and scene.core.counters.recomputed == 1
