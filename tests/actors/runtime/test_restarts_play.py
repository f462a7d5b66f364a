"""Supervision under random deaths, silences and joins: a state machine by hypothesis."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pageant.actors.runtime.instructions import GiveUp, Launch, Start
from pageant.actors.runtime.restarts import JOINING_SECONDS_MAX, Supervision
from tests.actors.runtime.supervised import ACTORS, LIMITS, NODES, PATIENT


class Supervised(RuleBasedStateMachine):
    """State machine in which anything may happen at any time, and be told late, twice or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Supervision("root", "", NODES, ACTORS, LIMITS, PATIENT)
        self.now = 0.0
        self.alive: dict[str, int] = {}  # actors and nodes that were started and of whose end we know nothing
        self.latest: dict[str, int] = {}
        self.final: set[str] = set()
        self.expected_until = -1.0  # that a guest comes
        self.carry_out(self.core.begin(self.now))

    def carry_out(self, instructions) -> None:
        for instruction in instructions:
            match instruction:
                case Start(node, order):
                    assert node in self.core.nodes_up()
                    self.began(order.name, order.incarnation)
                case Launch(node, incarnation):
                    self.began(f"node {node}", incarnation)
                case GiveUp(who):
                    assert who not in self.final
                    self.final.add(who)

    def began(self, who: str, incarnation: int) -> None:
        assert who not in self.alive and who not in self.final
        assert incarnation > self.latest.get(who, 0)
        self.alive[who] = self.latest[who] = incarnation

    def incarnation(self, who: str, age: int) -> int:
        return max(1, self.latest.get(who, 1) - age)

    @rule(name=st.sampled_from([plan.name for plan in ACTORS]), age=st.integers(0, 2))
    def actor_starts(self, name: str, age: int) -> None:
        self.carry_out(self.core.actor_started(name, self.incarnation(name, age), (), self.now))

    @rule(name=st.sampled_from([plan.name for plan in ACTORS]), age=st.integers(0, 2))
    def actor_fails(self, name: str, age: int) -> None:
        incarnation = self.incarnation(name, age)
        if self.alive.get(name) == incarnation:
            del self.alive[name]
        self.carry_out(self.core.actor_failed(name, incarnation, "E", "T", self.now))

    @rule(age=st.integers(0, 2))
    def process_joins(self, age: int) -> None:
        self.carry_out(self.core.node_joined("apart", self.incarnation("node apart", age), "", self.now))

    @rule(age=st.integers(0, 2))
    def process_exits(self, age: int) -> None:
        incarnation = self.incarnation("node apart", age)
        if self.alive.get("node apart") == incarnation:
            for name in ("node apart", "there/0", "there/1"):
                self.alive.pop(name, None)
        self.carry_out(self.core.node_exited("apart", incarnation, "killed", self.now))

    @rule(comes=st.booleans(), gone=st.booleans())
    def guest_asks(self, comes: bool, gone: bool) -> None:
        issued = self.core.issue("guest", self.now, gone=gone)
        assert issued is not None or "guest" in self.core.nodes_up() or self.now < self.expected_until
        if issued is None:
            return
        assert gone or "guest" not in self.core.nodes_up()
        self.expected_until = self.now + JOINING_SECONDS_MAX
        assert issued > self.latest.get("node guest", 0)
        self.latest["node guest"] = issued
        if comes:
            self.alive.pop("visitor", None)  # its former life is over
            self.carry_out(self.core.node_joined("guest", issued, "", self.now))
            self.expected_until = -1.0

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        due = self.core.wake_at()
        instructions = self.core.tick(self.now)
        assert bool(instructions) == (due is not None and due <= self.now)
        self.carry_out(instructions)
        after = self.core.wake_at()
        assert after is None or after > self.now

    @invariant()
    def the_directory_agrees(self) -> None:
        directory = self.core.directory()
        for actor in directory.actors:
            assert not actor.up or (actor.name in self.alive and actor.incarnation == self.alive[actor.name])
            assert not actor.up or actor.node in self.core.nodes_up()
            assert actor.final == (actor.name in self.final)
            assert actor.incarnation == self.latest.get(actor.name, 0)

    @invariant()
    def whoever_is_down_on_a_living_node_will_be_started(self) -> None:
        for actor in self.core.directory().actors:
            if actor.node in self.core.nodes_up() and not actor.final and actor.name not in self.alive:
                assert self.core.wake_at() is not None


TestSupervised = Supervised.TestCase
TestSupervised.settings = settings(max_examples=80, stateful_step_count=40)
