"""The suites bite: each wrong component is refused, and the rule that it breaks is named."""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from pageant.actors.blocks.actor import BlockManager
from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.tiers import Tiers
from pageant.actors.runtime import receives
from pageant.actors.scheduler.actor import Scheduler
from pageant.actors.scheduler.policies import FirstComeFirstServed
from pageant.protocol.allocation import Assign, Assigned
from pageant.protocol.errors import TopologyError
from pageant.protocol.serving import Abort
from pageant.protocol.stepping import ExecutorReady
from pageant.protocol.supervision import ActorDown
from pageant.scripts.conformance import (
    block_rules,
    check_block_manager,
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


class Altered(BlockManager):
    """A block manager whose answers are changed on their way out."""

    def tell(self, address, message):
        changed = self.change(message) if isinstance(message, Assigned) else message
        if changed is not None:
            super().tell(address, changed)

    def change(self, answer):
        return answer


class Silent(Altered):
    def change(self, answer):
        return None if answer.step % 9 == 0 else answer


class Chatty(Altered):
    def change(self, answer):
        super(Altered, self).tell("scheduler", answer)
        return answer


class Sharing(BlockManager):
    """Does not look at what else than its tokens a prefix's KV depends on."""

    left_out: ClassVar = {}

    @receives
    def assign(self, request: Assign) -> None:
        plain = tuple(replace(one, **self.left_out) for one in request.admissions)
        super().assign(replace(request, admissions=plain))


class SharingSalts(Sharing):
    left_out: ClassVar = {"salt": None}


class SharingKeys(Sharing):
    left_out: ClassVar = {"extra_keys": ()}


class SharingAdapters(Sharing):
    left_out: ClassVar = {"adapter": None}


class WrongStep(Altered):
    def change(self, answer):
        return replace(answer, step=answer.step + 1)


class Optimist(Altered):
    def change(self, answer):
        return replace(answer, blocks_free=answer.num_blocks)


class OutOfOrder(Altered):
    def change(self, answer):
        return replace(answer, admitted=answer.admitted[::-1])


class Overtaking(Altered):
    def change(self, answer):
        return replace(answer, admitted=answer.admitted[1:])


class AllCached(Altered):
    def change(self, answer):
        admitted = tuple(
            replace(grant, num_cached_tokens=grant.num_cached_tokens + grant.num_tokens)
            for grant in answer.admitted
        )
        return replace(answer, admitted=admitted)


class TooShort(Altered):
    def change(self, answer):
        return replace(
            answer,
            admitted=tuple(replace(grant, blocks=grant.blocks[:-1].copy()) for grant in answer.admitted),
        )


class Beyond(Altered):
    def change(self, answer):
        return replace(
            answer, admitted=tuple(replace(grant, blocks=grant.blocks + 1000) for grant in answer.admitted)
        )


class SameBlocks(Altered):
    def change(self, answer):
        return replace(
            answer,
            admitted=tuple(
                replace(grant, blocks=np.arange(len(grant.blocks), dtype=np.int32))
                for grant in answer.admitted
            ),
        )


class Miscounting(Altered):
    def change(self, answer):
        return replace(answer, grown_counts=answer.grown_counts + 1)


class Timid(Altered):
    def change(self, answer):
        return replace(answer, admitted=answer.admitted[:1])


class Greedy(BlockManager):
    @receives
    def assign(self, request: Assign) -> None:
        super().assign(replace(request, admission_tokens=request.admission_tokens + 7))


class Leaky(BlockManager):
    @receives
    def assign(self, request: Assign) -> None:
        super().assign(replace(request, freed=request.freed[1:].copy()))


class AnyEpoch(BlockManager):
    @receives
    def assign(self, request: Assign) -> None:
        if self._allocation is not None:
            self.tell(self.sender, self._allocation.assign(request))


class Faithful(BlockManager):
    """Never lets go of what a dead scheduler held."""

    @receives
    def scheduler_down(self, event: ActorDown) -> None:
        """Do nothing."""

    def _follow(self, incarnation):
        self._scheduler = incarnation


class Trusting(BlockManager):
    """Believes that a dead scheduler's last step was computed."""

    class Pool(BlockPool):
        def forget(self, blocks):
            """Forget nothing."""

    pool_class = Pool


class Nostalgic(BlockManager):
    """Keeps the pool of a dead executor."""

    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        kept = self._allocation
        super().executor_ready(event)
        if kept is not None:
            kept.release_all()
            self._allocation = kept


class _Early(Allocation):
    def _nameable(self, sequence):
        granted = sequence.granted
        self._columns.granted[sequence.slot] = len(sequence.blocks) * self.block_size
        found = super()._nameable(sequence)
        self._columns.granted[sequence.slot] = granted
        return found


class Early(BlockManager):
    """Names blocks before they are granted to be computed."""

    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        super().executor_ready(event)
        self._allocation = _Early(self._allocation.pool, event.block_size)


class Blurred(BlockManager):
    """Takes different prefixes for the same."""

    class Pool(BlockPool):
        def name(self, blocks, names):
            return super().name(blocks, [name[:1].ljust(len(name)) for name in names])

        def match(self, names):
            return super().match(name[:1].ljust(len(name)) for name in names)

    pool_class = Pool


class Shy(BlockManager):
    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        self._epoch = event.epoch
        self._allocation = Allocation(BlockPool(event.num_blocks), event.block_size)


class OfTiers(BlockManager):
    """One whose tiers are altered."""

    tiers_class = Tiers

    def __init_subclass__(cls) -> None:
        replaced = {name for name in vars(cls.tiers_class) if not name.startswith("__")}
        assert replaced <= set(dir(Tiers)), "what a faulty class replaces is there to replace"

    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        super().executor_ready(event)
        if self._allocation.tiers is not None:
            self._allocation.tiers.__class__ = self.tiers_class


class Credulous(OfTiers):
    """Believes that a dead scheduler's last step moved what it was to move."""

    class tiers_class(Tiers):
        def forget_uncommitted(self):
            """Forget nothing."""


class Tardy(OfTiers):
    """Saves beside the step what that step overwrites."""

    class tiers_class(Tiers):
        def end(self, granted):
            moves = super().end(granted)
            return moves and replace(moves, num_urgent=0)


class Hasty(OfTiers):
    """Moves with steps that are never computed."""

    class tiers_class(Tiers):
        def end(self, granted):
            return super().end(True)


class Careless(OfTiers):
    """Writes to the slots that it reads."""

    class tiers_class(Tiers):
        def find(self, names):
            slots = super().find(names)
            self.host.unpin()
            return slots


class Meeting(OfTiers):
    """Restores into blocks that are copied from."""

    def tell(self, address, message):
        if isinstance(message, Assigned) and message.moves and len(message.copy_sources):
            moves = replace(
                message.moves,
                restore_blocks=message.copy_sources[:1].copy(),
                restore_slots=message.moves.save_slots[:1].copy(),
            )
            message = replace(message, moves=moves)
        super().tell(address, message)


class Shortsighted(BlockManager):
    """Gives back blocks that are still reached."""

    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        halved = tuple(window and window // 2 for window in event.windows)
        super().executor_ready(replace(event, windows=halved))


class Crashing(BlockManager):
    @receives
    def assign(self, request: Assign) -> None:
        raise RuntimeError("out of cheese")


@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (Silent, block_rules.ANSWERS),
        (Chatty, block_rules.ANSWERS),
        (WrongStep, block_rules.ANSWERS),
        (Crashing, block_rules.ANSWERS),
        (Optimist, block_rules.COUNTS),
        (OutOfOrder, block_rules.PREFIX),
        (Overtaking, block_rules.PREFIX),
        (AllCached, block_rules.LOGITS),
        (TooShort, block_rules.SLOTS),
        (Beyond, block_rules.POOL),
        (SameBlocks, block_rules.ALONE),
        (Miscounting, block_rules.COLUMNS),
        (Timid, block_rules.ROOM),
        (Greedy, block_rules.BUDGET),
        (Leaky, block_rules.COUNTS),
        (AnyEpoch, block_rules.FOREIGN),
        (Faithful, block_rules.NEW_SCHEDULER),
        (Trusting, block_rules.UNCOMPUTED),
        (Nostalgic, block_rules.NEW_EPOCH),
        (Early, block_rules.ALONE),
        (Blurred, block_rules.CONTENT),
        (SharingSalts, block_rules.CONTENT),
        (SharingKeys, block_rules.CONTENT),
        (SharingAdapters, block_rules.CONTENT),
        (Shy, block_rules.INTRODUCES),
        (Credulous, block_rules.CONTENT),
        (Tardy, block_rules.SAVED),
        (Hasty, block_rules.MOVES),
        (Careless, block_rules.CONTENT),
        (Meeting, block_rules.APART),
        (Shortsighted, block_rules.REACH),
    ],
)
def test_a_wrong_block_manager_is_refused_by_rule(cls, rule, monkeypatch):
    monkeypatch.setattr("pageant.scripts.conformance.stage.ANSWER_SECONDS", 2.0)
    with pytest.raises(BrokenRule) as caught:
        check_block_manager(cls)
    assert caught.value.rule == rule, caught.value


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


def test_the_block_manager_moves_blocks_while_it_is_on_trial():
    assert {block_rules.MOVES, block_rules.SAVED, block_rules.APART} <= set(check_block_manager(BlockManager))


def test_the_block_manager_conforms_without_prefix_caching():
    assert check_block_manager(BlockManager, enable_prefix_caching=False)


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
