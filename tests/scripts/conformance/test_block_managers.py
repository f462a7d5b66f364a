"""Conformance of block managers: each wrong one is refused, and the rule that it breaks is named."""

from __future__ import annotations

import pytest

from pageant.actors.blocks.actor import BlockManager
from pageant.scripts.conformance import (
    block_rules,
    check_block_manager,
)
from pageant.scripts.conformance.rules import BrokenRule
from tests.scripts.conformance.faulty_block_managers import (
    AllCached,
    AnyEpoch,
    Beyond,
    Blurred,
    Careless,
    Chatty,
    Crashing,
    Credulous,
    Early,
    Faithful,
    Greedy,
    Hasty,
    Leaky,
    Meeting,
    Miscounting,
    Nostalgic,
    Optimist,
    OutOfOrder,
    Overtaking,
    SameBlocks,
    SharingAdapters,
    SharingKeys,
    SharingSalts,
    Shortsighted,
    Shy,
    Silent,
    Tardy,
    Timid,
    TooShort,
    Trusting,
    WrongStep,
)


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


def test_the_block_manager_moves_blocks_while_it_is_on_trial():
    assert {block_rules.MOVES, block_rules.SAVED, block_rules.APART} <= set(check_block_manager(BlockManager))


def test_the_block_manager_conforms_without_prefix_caching():
    assert check_block_manager(BlockManager, enable_prefix_caching=False)
