"""Every plan is answered once, in order and with the right tokens, whatever happens in whatever order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pageant.actors.executor.computing import ComputingThread
from pageant.actors.executor.core import ExecutorCore
from pageant.actors.executor.guided.guiding import Guiding
from pageant.actors.executor.pace import StepHung
from pageant.actors.executor.steps import Step, StepState
from pageant.actors.executor.tiers.moving import Moving
from tests.actors.executor.core_play import PATIENCE, ROWS, Play

ROW = st.integers(0, ROWS - 1)


def play_randomly(seed: int, turns: int = 400) -> Counter[str]:
    """Return what happened in a play of random turns."""
    play = Play(seed, threads=1 + seed % 2)
    draw = play.random
    deeds: list[tuple[int, Callable[[], Any]]] = [
        (20, lambda: play.turn(play.lane)),
        (8, lambda: play.turn(play.moves)),
        (8, lambda: play.turn(play.fetches)),
        (
            20,
            lambda: play.plan(
                draw.choice((1, 1, 3)), cut=draw.random() < 0.1, num_saves=draw.choice((0, 0, 3))
            ),
        ),
        (6, lambda: play.say_masks(draw.randint(1, 3))),
        (3, lambda: play.wait(draw.choice((0.001, 0.06, 1.5)))),
        (
            6,
            lambda: play.scheduler.add(
                draw.randrange(ROWS), guided=draw.random() < 0.4, penalised=draw.random() < 0.1
            ),
        ),
        (1, lambda: play.scheduler.end(draw.randrange(ROWS))),
        (1, play.cut),
        (1, lambda: draw.random() < 0.3 and play.scheduler.restart()),
        (1, lambda: draw.choice((play.kill_grammar, play.revive_grammar))()),
    ]
    weights, calls = zip(*deeds, strict=True)
    for _ in range(turns):
        draw.choices(calls, weights)[0]()
    play.drain()
    return play.seen


def test_every_plan_is_answered_rightly_in_random_plays():
    seen: Counter[str] = Counter()
    for seed in range(40):
        seen += play_randomly(seed)
    for what in ("launched", "awaited", "refused", "deferred", "late", "void", "several", "stopped short"):
        assert seen[what] > 10, (what, seen)


class Machine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**16), threads=st.sampled_from([1, 2]))
    def begin(self, seed, threads):
        self.play = Play(seed, threads=threads)

    @rule(row=ROW, guided=st.booleans(), penalised=st.booleans())
    def add(self, row, guided, penalised):
        self.play.scheduler.add(row, guided=guided, penalised=penalised)

    @rule(row=ROW)
    def end(self, row):
        self.play.scheduler.end(row)

    @rule(num_steps=st.integers(1, 4), cut=st.booleans(), num_saves=st.sampled_from([0, 0, 1, 4]))
    def plan(self, num_steps, cut, num_saves):
        self.play.plan(num_steps, cut=cut, num_saves=num_saves)

    @rule()
    def cut(self):
        self.play.cut()

    @rule(turns=st.integers(1, 3))
    def compute(self, turns):
        for _ in range(turns):
            self.play.turn(self.play.lane)

    @rule()
    def move(self):
        self.play.turn(self.play.moves)

    @rule()
    def fetch(self):
        self.play.turn(self.play.fetches)

    @rule(count=st.integers(1, 3))
    def masks(self, count):
        self.play.say_masks(count)

    @rule(seconds=st.sampled_from([0.001, 0.06, 1.2, 5.0]))
    def wait(self, seconds):
        self.play.wait(seconds)

    @rule()
    def new_scheduler(self):
        self.play.scheduler.restart()

    @rule(up=st.booleans())
    def grammar(self, up):
        (self.play.revive_grammar if up else self.play.kill_grammar)()

    @invariant()
    def holds(self):
        if hasattr(self, "play"):
            self.play.core.check_integrity()

    def teardown(self):
        self.play.drain()


def test_hypothesis_finds_no_order_of_events_that_breaks_a_promise():
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=50,
            phases=[Phase.generate],
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


# Each of these breaks one thing, and must be noticed.


def _begin_what_was_recalled(patch: pytest.MonkeyPatch) -> None:
    draw = ComputingThread.draw_awaiting
    launch = ComputingThread.launch

    def launch_at_once(self: Any, work: Any) -> Any:
        self._is_holding = False
        return launch(self, work)

    patch.setattr(ComputingThread, "draw_awaiting", lambda self, pending, recalled: draw(self, pending, 0))
    patch.setattr(ComputingThread, "launch", launch_at_once)


def _read_rows_without_the_token_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Guiding, "void_places", lambda self, *arguments: ())


def _compute_before_blocks_are_saved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Moving, "allows", lambda self, needed: True)


def _answer_for_the_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Step, "incarnation", property(lambda self: 10**6, lambda self, value: None), raising=False)


def _change_what_was_handed_over(patch: pytest.MonkeyPatch) -> None:
    pack = ExecutorCore._pack

    def careless(self: ExecutorCore, now: float) -> None:
        for step in self.steps:
            if step.state is StepState.LAUNCHED:
                step.inputs.slots[...] += 1
        pack(self, now)

    patch.setattr(ExecutorCore, "_pack", careless)


def _lose_tokens_on_their_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExecutorCore, "_fetch", lambda self: None)


@pytest.mark.parametrize(
    "breakage",
    [
        _begin_what_was_recalled,
        _read_rows_without_the_token_before,
        _compute_before_blocks_are_saved,
        _answer_for_the_dead,
        _change_what_was_handed_over,
        _lose_tokens_on_their_way,
    ],
)
def test_the_play_notices(breakage, monkeypatch):
    breakage(monkeypatch)
    with pytest.raises((AssertionError, KeyError, RuntimeError)):
        for seed in range(60):
            play_randomly(seed)


# Single promises.


def _play_with_a_step_that_lasts() -> Play:
    """Return a play whose step has been computed for 9 seconds."""
    play = Play(0)
    play.scheduler.add(0, guided=False, penalised=False)
    play.plan()
    play.turn(play.lane)
    play.plan()
    play.core.watch(play.now)
    play.wait(9.0)
    return play


def test_a_step_that_does_not_return_is_a_death():
    play = _play_with_a_step_that_lasts()
    play.core.watch(play.now)
    play.perform()
    play.wait(2.0)
    play.core.watch(play.now)
    with pytest.raises(StepHung, match=r"a step of 1 tokens has not returned for 11\.0 s"):
        play.perform()


def test_a_step_whose_kernel_is_compiled_is_waited_for():
    play = _play_with_a_step_that_lasts()
    play.core.watch(play.now, preparing=True)
    play.wait(500.0)
    play.core.watch(play.now)
    play.perform()
    play.wait(100.0)
    play.core.watch(play.now)
    with pytest.raises(StepHung, match=r"has not returned for 609\.0 s"):
        play.perform()


def test_a_row_whose_grammar_never_says_anything_fails():
    play = Play(0)
    play.scheduler.add(0, guided=True, penalised=False)
    play.plan()
    play.turn(play.lane)
    play.wait(0.1)  # longer than a step waits
    play.turn(play.lane)
    assert play.seen["deferred"] == 1
    for _ in range(20):
        play.masks.clear()
        play.wait(PATIENCE / 10)
    play.turn(play.lane)
    assert play.scheduler.failures == [f"its grammar did not say within {PATIENCE:g} s what may follow"]


def test_late_tokens_never_overtake_the_tokens_of_their_step():
    play = Play(1, threads=2)
    play.is_ready = lambda: False
    play.scheduler.add(0, guided=True, penalised=False)
    play.plan()
    play.turn(play.lane)
    play.wait(0.1)
    play.turn(play.lane)  # which is drawn without its mask, and its tokens are on their way
    play.say_masks()
    play.turn(play.lane)
    assert (play.seen["late"], play.seen["deferred"]) == (0, 0)
    play.turn(play.fetches)
    assert (play.seen["late"], play.seen["deferred"]) == (1, 1)


def test_plans_of_another_epoch_are_not_computed():
    play = Play(0)
    play.core.epoch += 1
    play.scheduler.add(0, guided=False, penalised=False)
    play.plan()
    assert not play.core.steps and not play.lane


def test_a_penalised_row_is_packed_when_its_last_token_is_known():
    play = Play(0)
    play.scheduler.add(0, guided=False, penalised=True)
    play.plan()
    play.plan()
    assert [step.state for step in play.core.steps] == [StepState.LAUNCHED, StepState.RECEIVED]
    play.turn(play.lane)
    assert [step.state for step in play.core.steps] == [StepState.LAUNCHED]


def test_a_step_becomes_only_what_comes_next():
    play = Play(0)
    play.scheduler.add(0, guided=False, penalised=False)
    play.plan()
    (step,) = play.core.steps
    with pytest.raises(AssertionError, match="LAUNCHED does not become ANSWERED"):
        step.become(StepState.ANSWERED)
