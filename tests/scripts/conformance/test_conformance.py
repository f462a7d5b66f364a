"""Conformance suites: wrong policies, pools and schedulers are refused by rule, and the defaults conform."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest

from pageant.actors.blocks.pool import BlockPool
from pageant.actors.runtime import receives
from pageant.actors.scheduler.actor import Scheduler
from pageant.actors.scheduler.policies import FirstComeFirstServed
from pageant.protocol.allocation import Assign
from pageant.protocol.errors import TopologyError
from pageant.protocol.serving import Abort
from pageant.scripts.conformance import (
    check_policy,
    check_pool,
    check_scheduler,
    run,
)
from pageant.scripts.conformance import policy as policy_rules
from pageant.scripts.conformance import pool as pool_rules
from pageant.scripts.conformance import scheduler as scheduler_rules
from pageant.scripts.conformance.rules import BrokenRule

replace = msgspec.structs.replace


class Policy(FirstComeFirstServed):
    pass


class NotANumber(Policy):
    def order(self, request):
        return (math.nan,)


class NoTuple(Policy):
    def order(self, request):
        return float(request.arrival)


class Uneven(Policy):
    def order(self, request):
        return (1.0,) * (1 + request.arrival % 2)


class Counting(Policy):
    def __init__(self):
        self.calls = itertools.count()

    def order(self, request):
        return (float(next(self.calls)),)


class Meddling(Policy):
    def order(self, request):
        request.num_preemptions += 1
        return (float(request.arrival),)


class Inventing(Policy):
    def victim(self, running):
        return None


class Wavering(Policy):
    def __init__(self):
        self.calls = itertools.count()

    def victim(self, running):
        return running[next(self.calls) % len(running)]


class Taking(Policy):
    def victim(self, running):
        return running.pop()


class Demanding(Policy):
    def __init__(self, weight):
        self.weight = weight


class Headless(Policy):
    order = None


@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (NotANumber, policy_rules.NUMBERS),
        (NoTuple, policy_rules.NUMBERS),
        (Uneven, policy_rules.LENGTH),
        (Counting, policy_rules.PURE_ORDER),
        (Meddling, policy_rules.PURE_ORDER),
        (Inventing, policy_rules.CHOICE),
        (Wavering, policy_rules.PURE_VICTIM),
        (Taking, policy_rules.PURE_VICTIM),
        (Demanding, policy_rules.MADE),
        (Headless, policy_rules.METHODS),
    ],
)
def test_a_wrong_policy_is_refused_by_rule(cls, rule):
    with pytest.raises(BrokenRule) as caught:
        check_policy(cls)
    assert caught.value.rule == rule, caught.value


class HeldVictim(BlockPool):
    def next_victims(self, count):
        return list(range(count))


class TooFew(BlockPool):
    def next_victims(self, count):
        return super().next_victims(count)[:2]


class Random(BlockPool):
    calls = itertools.count()

    def next_victims(self, count):
        free = list(self._free)
        first = next(self.calls) % len(free)
        return (free[first:] + free[:first])[:count]


class Forgetful(BlockPool):
    def on_freed(self, blocks):
        self.forget(blocks)


class Losing(BlockPool):
    def on_freed(self, blocks):
        for block in blocks:
            if block % 5 == 3:
                del self._free[block]


class Doubling(BlockPool):
    def take(self, count):
        blocks = super().take(count)
        return blocks[:1] * count


class Generous(BlockPool):
    def match(self, names):
        names = list(names)
        return super().match(names[:1]) + super().match(names[2:3])


@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (HeldVictim, pool_rules.VICTIM),
        (TooFew, pool_rules.VICTIM),
        (Random, pool_rules.VICTIM),
        (Forgetful, pool_rules.KEPT),
        (Losing, pool_rules.FREE),
        (Doubling, pool_rules.TAKE),
        (Generous, pool_rules.KEPT),
        (dict, pool_rules.SUBCLASS),
    ],
)
def test_a_wrong_pool_is_refused_by_rule(cls, rule):
    with pytest.raises(BrokenRule) as caught:
        check_pool(cls)
    assert caught.value.rule in (rule, pool_rules.SOUND), caught.value


class Deaf(Scheduler):
    @receives
    def abort(self, message: Abort) -> None:
        for request_id in message.request_ids:
            self.core.requests._by_name.pop((message.frontend, request_id), None)


class Lavish(Scheduler):
    def __init__(self, options):
        super().__init__(replace(options, max_num_batched_tokens=options.max_num_batched_tokens + 5))


class Hoarding(Scheduler):
    """Never gives blocks back after the first hundred steps."""

    def tell(self, address, message):
        if isinstance(message, Assign) and message.step > 100:
            message = replace(message, freed=message.freed[:0].copy())
        super().tell(address, message)


class Early_(Scheduler):
    def __init__(self, options):
        super().__init__(replace(options, eos_token_ids=(*options.eos_token_ids, 3)))


@pytest.mark.parametrize(
    ("cls", "rules"),
    [
        (Lavish, {scheduler_rules.BUDGET}),
        (Hoarding, {scheduler_rules.REST, scheduler_rules.ONCE, scheduler_rules.TOKENS}),
        (Early_, {scheduler_rules.TOKENS}),
        (Deaf, {scheduler_rules.ONCE, scheduler_rules.PLANS, scheduler_rules.TOKENS}),
    ],
)
def test_a_wrong_scheduler_is_refused_by_rule(cls, rules, monkeypatch):
    monkeypatch.setattr("pageant.scripts.conformance.stage.ANSWER_SECONDS", 2.0)
    with pytest.raises((BrokenRule, KeyError)) as caught:
        check_scheduler(cls)
    assert isinstance(caught.value, BrokenRule), caught.value
    assert caught.value.rule in rules, caught.value


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("blocks", "pageant.actors.blocks.actor:BlockManager"),
        ("pool", "pageant.actors.blocks.pool:BlockPool"),
        ("policy", "pageant.actors.scheduler.policies:FirstComeFirstServed"),
        ("scheduler", "pageant.actors.scheduler.actor:Scheduler"),
    ],
)
def test_the_default_of_each_kind_conforms(kind, name):
    report = run(kind, name)
    assert report.passed, report
    assert len(report.kept) >= 8
    assert "conforms" in str(report)


def test_a_report_names_the_broken_rule_and_an_error_of_the_component():
    report = run("policy", "collections:OrderedDict")
    assert not report.passed
    assert "methods order and victim" in str(report)


def test_an_unknown_suite_or_class_is_named():
    with pytest.raises(
        TopologyError,
        match="expected one of blocks, detokenizer, drafter, executor, grammar, policy, pool, scheduler, tokenizer",
    ):
        run("block", "pageant.actors.blocks.actor:BlockManager")
    with pytest.raises(TopologyError, match="BlockManager"):
        run("blocks", "pageant.actors.blocks.actor:BlockManagr")
