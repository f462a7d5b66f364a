"""The search of a tune, over costs that are made up."""

from __future__ import annotations

import builtins
import dataclasses
from types import SimpleNamespace

import pytest

from pageant.protocol.errors import ConfigurationError
from pageant.scripts.planning.calibration import Calibration
from pageant.scripts.planning.search import ServiceLevel
from pageant.scripts.replay.costs import Fitted, StepCosts
from pageant.scripts.tuning.binding import binding
from pageant.scripts.tuning.measuring import acceptance_of, tokens_per_step
from pageant.scripts.tuning.simulating import Resources, Simulator, usual_rate
from pageant.scripts.tuning.space import Candidate, Layout, Space
from pageant.scripts.tuning.study import check_installed, study
from pageant.scripts.tuning.workloads import Drawn, Kind, Lengths, Workload

MIXED = Workload((Kind(0.8, Lengths(16, 64), Lengths(16, 32)), Kind(0.2, Lengths(800, 1000), Lengths(8, 16))))


class Measured:
    """Costs of steps by layout, as calibration would say."""

    def __init__(self, acceptance: float = 0.0, num_blocks: int = 4096, **costs: Fitted) -> None:
        self.acceptance, self._blocks = acceptance, num_blocks
        self._costs = costs or {"1x2": Fitted(constant=0.01, token=1e-3)}

    def of(self, candidate: Candidate) -> Calibration:
        costs = StepCosts()
        costs.fitted = self._costs[str(candidate.layout)]
        costs.host_seconds = 0.002
        header = SimpleNamespace(num_blocks=self._blocks, block_size=16, windows=(None,))
        load = SimpleNamespace(header=header, costs=costs, settings=lambda: {"max_model_len": 2048})
        return Calibration(load)


def simulator(level: str, rate: float = 2.0, measured: Measured | None = None, **more) -> Simulator:
    source = Drawn(more.pop("workload", MIXED), rate, vocabulary=500)
    return Simulator(measured or Measured(), source, ServiceLevel.parse(level), {}, 12.0)


def search(one: Simulator, space: Space, trials: int = 12, seed: int = 0) -> list[tuple[float, Candidate]]:
    return study(space, lambda each: one.run(each).score(space.changes(each)), trials, seed)


WHOLE = Space.of({}, 2, replicas_max=1)
SPACE = Space(WHOLE.defaults, {**WHOLE.choices, "layout": (Layout(1, 2),), "max_num_seqs": (256,)})


def test_small_steps_are_found_where_long_prompts_hold_up_the_others():
    """A step of 1,000 tokens takes a second here, and one of 64 or 128 holds the level."""
    one = simulator("itl=200ms,ttft=4s")
    defaults = one.run(SPACE.defaults)
    (_, best), *_ = search(one, SPACE)
    found = one.run(best)
    assert best.max_num_batched_tokens in (64, 128) and found.holds
    assert defaults.share < 0.95 < found.share and found.goodput > defaults.goodput


def test_the_search_finds_what_trying_all_finds():
    one = simulator("itl=200ms,ttft=4s")
    scores = {each: one.run(each).score(SPACE.changes(each)) for each in SPACE.candidates()}
    (all_, _), *_ = search(one, SPACE, trials=len(SPACE))
    (found, _), *_ = search(one, SPACE, trials=10)
    assert all_ == max(scores.values()) and found >= all_ - 0.02


def test_the_same_seed_tries_the_same_and_the_defaults_first():
    tried: list[list[Candidate]] = [[], []]
    one = simulator("itl=200ms,ttft=4s")
    for order in tried:

        def score(each: Candidate, order: list[Candidate] = order) -> float:
            order.append(each)
            return one.run(each).score(SPACE.changes(each))

        study(SPACE, score, 8, seed=3)
    assert tried[0] == tried[1] and tried[0][0] == SPACE.defaults
    assert len(set(tried[0])) == len(tried[0]) > 3


def test_defaults_that_hold_with_much_to_spare_stay():
    one = simulator("itl=10s,ttft=60s", rate=0.2)
    (_, best), *_ = search(one, SPACE)
    assert best == SPACE.defaults


def test_replicas_are_found_where_two_serve_more_than_one():
    costs = {"1x2": Fitted(constant=0.1, token=1e-3), "2x1": Fitted(constant=0.05, token=1e-3)}
    choices = {**SPACE.choices, "layout": (Layout(1, 2), Layout(2, 1))}
    space = dataclasses.replace(SPACE, choices=choices)
    one = simulator(
        "itl=90ms",
        measured=Measured(**costs),
        workload=Workload((Kind(1.0, Lengths(8, 16), Lengths(16, 32)),)),
    )
    (_, best), *_ = search(one, space)
    assert best.layout == Layout(2, 1)


def test_speculation_shortens_answers_by_as_much_as_drafts_are_right():
    plain = Candidate(Layout(1, 2))
    guessing = dataclasses.replace(plain, speculation_tokens=4)
    for acceptance, faster in ((0.8, True), (0.0, False)):
        one = simulator("e2e=10s", 0.2, Measured(acceptance))
        seconds = [one.run(each).outcome.whole.p50 for each in (plain, guessing)]
        assert (seconds[1] < seconds[0]) is faster
    assert tokens_per_step(0.5, 2) == 1.75
    assert acceptance_of(1.75, 2) == pytest.approx(0.5, abs=1e-5)
    assert acceptance_of(1.0, 4) == 0.0


@pytest.mark.parametrize(
    ("costs", "blocks", "name"),
    [
        (Fitted(constant=0.003, token=2e-3), 4096, "compute"),
        (Fitted(constant=0.2, token=1e-6), 4096, "memory bandwidth"),
        (Fitted(constant=0.002, token=1e-6, context_token=3e-5), 4096, "memory bandwidth"),
        (Fitted(constant=0.05, token=1e-6), 66, "KV room"),
    ],
)
def test_what_binds_is_what_costs_most(costs, blocks, name):
    one = simulator("ttft=2s,itl=150ms", 3.0, Measured(num_blocks=blocks, **{"1x2": costs}))
    found = binding(Candidate(Layout(1, 2)), one.run)
    assert found.name == name
    assert found.lines()[0].startswith(f"{name} binds: at ")
    assert "what would help" in found.lines()[1]


def test_a_host_that_is_slow_binds():
    costs = StepCosts()
    costs.fitted, costs.host_seconds = Fitted(constant=0.1, token=1e-4), 0.09
    assert Resources(host=2.0).changed(costs).fitted.constant == pytest.approx(0.055)
    assert Resources(bandwidth=2.0).changed(costs).fitted.constant == pytest.approx(0.095)
    assert Resources(compute=2.0).changed(costs).fitted.token == 5e-5
    assert costs.fitted.constant == 0.1


def test_the_most_that_holds_is_found_within_a_tenth():
    for most in (0.3, 1.0, 37.0):
        found = usual_rate(lambda rate, most=most: rate <= most)
        assert found <= most <= 1.1 * found * 1.0001


def test_without_optuna_the_extra_is_named(monkeypatch):
    imported = builtins.__import__

    def refuse(name, *rest, **more):
        if name == "optuna":
            raise ImportError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigurationError, match=r"pip install 'pageant\[tune\]'"):
        check_installed()
