"""The router's index against a plain account of who has which block."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pageant.actors.router.index import DEVICE, PREDICTION_SECONDS, PrefixIndex

REPLICAS = st.integers(0, 3)
NAMES = st.lists(st.sampled_from([bytes([number]) * 16 for number in range(6)]), max_size=6)
TIERS = st.sampled_from([DEVICE, "host"])


class Indexed(RuleBasedStateMachine):
    """An index, and sets of the same."""

    def __init__(self) -> None:
        super().__init__()
        self.index, self.now = PrefixIndex(), 0.0
        self.held: set[tuple[int, str, bytes]] = set()
        self.expected: dict[tuple[int, bytes], float] = {}

    @rule(replica=REPLICAS, names=NAMES, tier=TIERS)
    def store(self, replica, names, tier):
        self.index.store(1 << replica, names, tier)
        self.held |= {(replica, tier, name) for name in names}
        for name in names:
            self.expected.pop((replica, name), None)

    @rule(replica=REPLICAS, names=NAMES, tier=TIERS)
    def remove(self, replica, names, tier):
        self.index.remove(1 << replica, names, tier)
        self.held -= {(replica, tier, name) for name in names}

    @rule(replica=REPLICAS)
    def reset(self, replica):
        self.index.reset(1 << replica)
        self.held = {one for one in self.held if one[0] != replica}
        self.expected = {one: end for one, end in self.expected.items() if one[0] != replica}

    @rule(replica=REPLICAS, names=NAMES)
    def predict(self, replica, names):
        self.index.predict(1 << replica, names, self.now)
        for name in names:
            if not any((replica, tier, name) in self.held for tier in (DEVICE, "host")):
                self.expected[replica, name] = self.now + PREDICTION_SECONDS

    @rule(seconds=st.sampled_from([1.0, PREDICTION_SECONDS / 2, PREDICTION_SECONDS]))
    def wait(self, seconds):
        self.now += seconds
        self.index.expire(self.now)
        self.expected = {one: end for one, end in self.expected.items() if end > self.now}

    @rule(names=NAMES, bits=st.integers(0, 15))
    def match(self, names, bits):
        depths, read = self.index.match(iter(names), bits)
        assert {*depths} <= {1 << replica for replica in range(4) if bits >> replica & 1}
        assert all(depths.values()), "those that have no block are left out"
        for replica in (replica for replica in range(4) if bits >> replica & 1):
            depth = depths.get(1 << replica, 0)
            has = [self.has(replica, name) for name in names]
            assert depth == (has.index(False) if False in has else len(names))
        assert read == names[: len(read)] and (
            not bits or len(read) >= min(len(names), max(depths.values(), default=0))
        )

    def has(self, replica, name):
        there = any((replica, tier, name) in self.held for tier in (DEVICE, "host"))
        return there or (replica, name) in self.expected

    @invariant()
    def counts_are_right(self):
        for replica in range(4):
            assert self.index.count(1 << replica) == sum(one[0] == replica for one in self.held)

    @invariant()
    def nothing_is_left_of_what_is_gone(self):
        names = {name for _, _, name in self.held}
        assert {name for masks in self.index._tiers.values() for name in masks} == names
        ends = {(name, bit) for bit, names in self.index._ends.items() for name in names}
        assert ends == {(name, 1 << replica) for replica, name in self.expected}


TestIndexed = Indexed.TestCase
TestIndexed.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
