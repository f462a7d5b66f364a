"""Play of thousands of random requests, aborts, stops, preemptions and deaths, in any order: nothing leaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.columns import Columns
from pageant.actors.blocks.groups import Groups
from pageant.actors.blocks.learning import Learning
from pageant.actors.blocks.prefixes import Prefixes
from pageant.actors.blocks.store import Store
from pageant.actors.blocks.tiers import Tiers
from pageant.actors.executor.computing import ComputingThread
from pageant.actors.executor.tiers.moving import Moving
from pageant.actors.scheduler import planning
from pageant.actors.scheduler.core import SchedulerCore
from pageant.actors.scheduler.open_requests import OpenRequests
from pageant.actors.scheduler.planning import Planner
from pageant.actors.scheduler.queue import WaitingQueue
from pageant.actors.scheduler.running import Running
from pageant.protocol.drafting import Speculation
from pageant.protocol.stepping import ExecutorReady
from tests.actors.scheduler.play.play import Play
from tests.actors.scheduler.play.script import Script
from tests.actors.scheduler.play.setting import Setting

DRAFTS = Speculation(method="draft", model="any", tokens=3, adaptive=False)
STAGES: tuple[dict[str, Any], ...] = (
    {},
    {"num_blocks": 15, "max_num_seqs": 8, "max_num_batched_tokens": 16},
    {"num_blocks": 20, "block_size": 3, "credit": 2, "max_num_batched_tokens": 7},
    {"num_blocks": 60, "block_size": 1, "max_num_seqs": 4},
    {"num_blocks": 40, "max_num_seqs": 3},
    {"enable_prefix_caching": False},
    {"async_scheduling": False, "num_blocks": 15},
    {"short_step_seconds": 0.0, "num_blocks": 15},
    {"policy": "fair", "num_blocks": 15},
    {"policy": "shortest", "num_blocks": 15},
    {"policy": "priority", "max_num_batched_tokens": 12},
    {"num_blocks": 14, "max_num_seqs": 8, "windows": (9,)},
    {"num_blocks": 20, "block_size": 3, "windows": (7,), "max_num_batched_tokens": 9, "host_blocks": 10},
    {"num_blocks": 15, "max_num_seqs": 8, "host_blocks": 40},
    {"speculation": DRAFTS, "num_blocks": 30},
    {"speculation": DRAFTS, "block_size": 3, "num_blocks": 19, "host_blocks": 5},
    {"speculation": msgspec.structs.replace(DRAFTS, adaptive=True), "max_num_batched_tokens": 12},
    {"speculation": DRAFTS, "async_scheduling": False, "max_num_seqs": 3},
    {"num_blocks": 20, "block_size": 3, "host_blocks": 5, "disk_blocks": 30},
    {"num_blocks": 15, "max_num_seqs": 8, "host_blocks": 20, "disk_blocks": 60, "clock_ticks": 1.0},
    {"num_blocks": 20, "block_size": 3, "host_blocks": 8, "disk_blocks": 20, "windows": (8,)},
    {"num_blocks": 30, "max_num_seqs": 8, "windows": (None, 9)},
    {"num_blocks": 60, "block_size": 3, "windows": (None, 7, 7), "host_blocks": 20, "disk_blocks": 60},
    {"num_blocks": 28, "windows": (None, 6), "long_prefill_token_threshold": 4, "max_num_batched_tokens": 40},
    {"num_blocks": 40, "windows": (12, 5), "speculation": DRAFTS, "max_num_batched_tokens": 12},
    {"num_blocks": 15, "max_num_seqs": 8, "host_blocks": 60, "clock_ticks": 1.0},
    {"share_final": 1.0, "num_blocks": 150, "max_num_seqs": 20, "max_num_batched_tokens": 200},
    {"share_final": 1.0, "num_blocks": 150, "max_num_seqs": 12, "windows": (9,), "max_steps_per_plan": 4},
    {"share_final": 0.7, "num_blocks": 30, "max_steps_per_plan": 3, "max_num_seqs": 8},
    {"share_final": 1.0, "num_blocks": 24, "block_size": 3, "windows": (7,), "short_step_seconds": 60.0},
    {"share_final": 0.9, "num_blocks": 60, "windows": (None, 9), "max_num_seqs": 4, "host_blocks": 20},
)
TOGETHER = [stage for stage in STAGES if "share_final" in stage]
TIERED = [stage for stage in STAGES if {"windows", "host_blocks"} & stage.keys()]
OFTEN = (
    *("steps_ahead", "steps_together", "rows_wasted", "tokens not known to the host"),
    *(
        "chunk_splits",
        "prefix hits",
        "blocks copied",
        "evictions",
        "preemptions",
        "growth_refused",
        "stops_by_string",
        "blocks: save",
        "blocks: restore",
        "blocks: write",
        "blocks: read",
        "blocks given back",
    ),
    *(
        "aborts_waiting",
        "aborts_asked",
        "aborts_running_prefill",
        "aborts_running_decode",
        "aborts_preempted",
    ),
    *("abort of running while assigning", "abort of running while computing", "abort in the last step"),
    *("ended by stop", "ended by length", "ended by abort"),
    *("drafts_accepted", "verifications"),
)
AFTER_DEATHS = ("resumed", "recomputed", "reopened", "tokens dropped")


def test_nothing_leaks_whatever_happens_in_whatever_order():
    seen: Counter[str] = Counter()
    for hostile in (False, True):
        for seed in range(len(STAGES)):
            setting = Setting(**STAGES[seed % len(STAGES)])
            seen += Script(seed, setting, hostile=hostile).run(120)
    assert seen["submitted"] > 3000
    assert seen["ended by error"], "only those that can never be served"
    assert {what: seen[what] for what in OFTEN if seen[what] < 60} == {}
    assert seen["swaps"] >= 6
    assert seen["blocks restored ahead"]
    assert seen["plans_cut"] >= 12
    assert {what: seen[what] for what in AFTER_DEATHS if seen[what] < 18} == {}
    deaths = [f"death of {name}" for name in ("executor/0", "blocks", "detokenizer", "scheduler", "frontend")]
    assert {what: seen[what] for what in deaths if seen[what] < 3} == {}


def test_nothing_leaks_whatever_operators_do():
    seen: Counter[str] = Counter()
    for seed, stage in enumerate(STAGES):
        setting = Setting(**stage)
        seen += Script(100 + seed, setting, hostile=seed % 2 == 0, operated=True).run(120)
    for mode in ("keep", "wait", "abort"):
        assert seen[f"at rest with {mode}"] >= 20, mode
    assert seen["held at rest"] >= 100
    assert seen["resets"] >= 20
    assert seen["prefix hits"] and seen["preemptions"] and seen["steps_together"] and seen["plans_cut"]
    assert seen["recomputed"] and seen["drafts_accepted"]


def test_hypothesis_finds_no_order_of_events_that_breaks_the_play():
    class Machine(RuleBasedStateMachine):
        @initialize(stage=st.sampled_from(STAGES), seed=st.integers(0, 2**16))
        def begin(self, stage, seed):
            self.play = Play(seed, Setting(**stage))

        @rule(
            prefix=st.integers(0, 40),
            tail=st.lists(st.integers(0, 31), max_size=4),
            max_tokens=st.sampled_from([1, 2, 9, None]),
            stop=st.sampled_from([(), ("A", "BC")]),
            ignore_eos=st.booleans(),
            frontend=st.sampled_from(["frontend", "other-frontend"]),
        )
        def submit(self, prefix, tail, max_tokens, stop, ignore_eos, frontend):
            prompt = [*range(1, 32), *range(1, 32)][:prefix] + tail
            self.play.submit(prompt, frontend, max_tokens=max_tokens, stop=stop, ignore_eos=ignore_eos)

        @rule(data=st.data())
        @precondition(lambda self: any(not r.ended for r in self.play.requests.values()))
        def abort(self, data):
            open_ = [request for request in self.play.requests.values() if not request.ended]
            self.play.abort(data.draw(st.sampled_from(open_)))

        @rule(data=st.data())
        @precondition(lambda self: self.play.waiting_channels())
        def deliver_one(self, data):
            self.play.deliver(data.draw(st.sampled_from(sorted(self.play.waiting_channels()))))

        @rule(count=st.integers(1, 30))
        def deliver_some(self, count):
            for _ in range(count):
                self.play.deliver()

        @rule(name=st.sampled_from(["scheduler", "blocks", "executor/0", "detokenizer", "frontend"]))
        def kill(self, name):
            self.play.kill(name)

        @rule()
        def revive(self):
            self.play.revive()

        def teardown(self):
            self.play.revive()
            self.play.drain()
            self.play.invariants.at_rest()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60,
            phases=[Phase.generate],
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


# Each of these breaks one thing that the play relies on, and must be noticed.


def _lose_frees(patch: Any) -> None:
    build = planning.build_assign

    def build_assign(exchange: Any, lengths: Any, epoch: int, manager: int, news: Any, **rest: Any) -> Any:
        if exchange.step % 7 == 0:
            news.freed = news.freed[1:]
        return build(exchange, lengths, epoch, manager, news, **rest)

    patch.setattr(planning, "build_assign", build_assign)


def _drop_aborts(patch: Any) -> None:
    abort = SchedulerCore.abort
    patch.setattr(
        SchedulerCore, "abort", lambda self, message: None if self.planner._step % 3 else abort(self, message)
    )


def _free_twice(patch: Any) -> None:
    free = Allocation._free

    def free_twice(self: Any, serial: int) -> None:
        sequence = self._sequences.get(serial)
        free(self, serial)
        if sequence is not None and serial % 9 == 0:
            self.pool.free(sequence.blocks[:1])

    patch.setattr(Allocation, "_free", free_twice)


def _name_before_granted(patch: Any) -> None:
    name = Learning.nameable

    def name_all(self: Any, sequence: Any) -> Any:
        granted, room = sequence.granted, len(sequence.blocks) * self._block_size
        self._columns.granted[sequence.slot] = room
        found = name(self, sequence)
        self._columns.granted[sequence.slot] = granted
        return found

    patch.setattr(Learning, "nameable", name_all)


def _release_while_computing(patch: Any) -> None:
    patch.setattr(Running, "is_named", lambda self, request: False)
    patch.setattr(Running, "leave", lambda self, chunks: [])


def _compute_nothing_of_the_aborted(patch: Any) -> None:
    take = Planner._take_grants

    def take_grants(self: Any, *event: Any) -> Any:
        chunks, new = take(self, *event)
        going = ~self._running._ended[chunks.rows]
        return (chunks if going.all() or not going.any() else chunks[going], new)

    patch.setattr(Planner, "_take_grants", take_grants)


def _overtake(patch: Any) -> None:
    first = WaitingQueue.first
    patch.setattr(WaitingQueue, "first", lambda self, *most: reversed(list(first(self, *most))))


def _forget_what_was_drawn_before_a_preemption(patch: Any) -> None:
    preempt = OpenRequests.preempt

    def forgetful(self: Any, request: Any) -> None:
        del request.output[-1:]
        preempt(self, request)

    patch.setattr(OpenRequests, "preempt", forgetful)


def _ignore_a_new_executor(patch: Any) -> None:
    ready = SchedulerCore.executor_ready

    def executor_ready(self: Any, event: ExecutorReady) -> None:
        gone, self.executor_gone = self.executor_gone, lambda epoch: None
        ready(self, event)
        self.executor_gone = gone

    patch.setattr(SchedulerCore, "executor_ready", executor_ready)
    patch.setattr(Planner, "lose_memory", lambda self: None)


def _lose_copies(patch: Any) -> None:
    patch.setattr(Prefixes, "_find_partial", lambda self, *wanted: ([], _find_partial(self, *wanted)[1]))


def _copy_what_is_not_computed_yet(patch: Any) -> None:
    patch.setattr(
        Prefixes,
        "_find_partial",
        lambda self, parent, wanted, step: _find_partial(self, parent, wanted, step + 1),
    )


_find_partial = Prefixes._find_partial


def _compute_before_what_is_restored_is_there(patch: Any) -> None:
    patch.setattr(Moving, "allows", lambda self, needed: True)


def _restore_what_was_given_to_others(patch: Any) -> None:
    patch.setattr(Store, "pin", lambda self, name: self._slots.get(name))


def _save_later_what_is_overwritten_now(patch: Any) -> None:
    end = Tiers.end

    def relaxed(self: Any, granted: bool) -> Any:
        moves = end(self, granted)
        return moves and msgspec.structs.replace(moves, num_urgent=0)

    patch.setattr(Tiers, "end", relaxed)


def _give_back_what_a_window_reaches(patch: Any) -> None:
    first = Groups.first

    def further(self: Any, group: int, position: int) -> int:
        return first(self, group, position + 2 * self.block_size)

    patch.setattr(Groups, "first", further)


def _give_back_what_a_step_at_hand_reaches(patch: Any) -> None:
    begins = Columns.begins
    patch.setattr(Columns, "begins", lambda self, slots, tokens, _: begins(self, slots, tokens, 10**9))


def _compute_what_continues_a_plan_that_stopped_short(patch: Any) -> None:
    launch = ComputingThread._launch_several

    def launch_all(self: Any, *arguments: Any) -> Any:
        self._has_stopped = False
        return launch(self, *arguments)

    patch.setattr(ComputingThread, "_launch_several", launch_all)


def _keep_what_was_not_computed(patch: Any) -> None:
    patch.setattr(Running, "withdraw", lambda *_: None)


OF_SEVERAL_STEPS = (_compute_what_continues_a_plan_that_stopped_short, _keep_what_was_not_computed)
OF_TIERS = (
    _give_back_what_a_window_reaches,
    _give_back_what_a_step_at_hand_reaches,
    _compute_before_what_is_restored_is_there,
    _restore_what_was_given_to_others,
    _save_later_what_is_overwritten_now,
)


@pytest.mark.parametrize(
    "breakage",
    [
        *OF_TIERS,
        *OF_SEVERAL_STEPS,
        _lose_copies,
        _copy_what_is_not_computed_yet,
        _lose_frees,
        _drop_aborts,
        _free_twice,
        _name_before_granted,
        _release_while_computing,
        _compute_nothing_of_the_aborted,
        _overtake,
        _forget_what_was_drawn_before_a_preemption,
        _ignore_a_new_executor,
    ],
)
def test_the_play_notices(breakage: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    breakage(monkeypatch)
    with pytest.raises((AssertionError, KeyError, ValueError, RuntimeError, IndexError, AttributeError)):
        for seed in range(60):
            stages = (
                TIERED if breakage in OF_TIERS else TOGETHER if breakage in OF_SEVERAL_STEPS else STAGES[:3]
            )
            stage = stages[seed % len(stages)]
            Script(seed, Setting(**stage), hostile=True).run(120)
