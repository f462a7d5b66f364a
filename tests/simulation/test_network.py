"""Simulated network: what it does to what is sent, and what it never does."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pageant.actors.runtime.simulation.loop import VirtualLoop
from pageant.actors.runtime.simulation.network import CLOGGED_SECONDS, SLOW_SECONDS, Network, SimulatedLink
from pageant.protocol.envelope import Header, Mode, encode_header

LATENCY = 0.001
SECONDS = 0.5


class Taker:
    """Taker of what came, and when."""

    def __init__(self, loop):
        self._loop = loop
        self.times: list[float] = []
        self.numbers: list[int] = []
        self.reasons: list[str] = []

    def receive(self, node, frames):
        self.times.append(self._loop.time())
        self.numbers.append(int(frames[1]))

    def refuse(self, node, reason):
        self.reasons.append(reason)

    def met(self, node): ...
    def replaced(self, node): ...
    def lost(self, node, envelopes): ...


class Pair:
    """Two nodes, of which `one` linked to `other`."""

    def __init__(self):
        self.loop = VirtualLoop()
        self.network = Network(self.loop, Random(7), lambda random: LATENCY)
        self.takers = {name: Taker(self.loop) for name in ("one", "other")}
        self.one, self.other = (
            SimulatedLink(self.network, name, 1, taker) for name, taker in self.takers.items()
        )
        self.broken: list[tuple[str, int]] = []
        self.one.on_broken = lambda node, incarnation: self.broken.append((node, incarnation))
        self.loop.run(self.one.connect("other", 1, self.other.endpoint))
        self.began = self.loop.time()

    def send(self, source, target, *numbers):
        header = encode_header(Header(Mode.TELL, "", "actor", "actor"))
        for number in numbers:
            assert getattr(self, source).send(target, [header, str(number).encode()])

    def pass_time(self, seconds):
        self.loop.run(asyncio.sleep(seconds))

    def waited(self, name):
        """Return after how long each envelope came."""
        return [pytest.approx(time - self.began, abs=1e-9) for time in self.takers[name].times]


@pytest.fixture
def pair():
    return Pair()


def test_what_is_sent_comes_once_and_in_order(pair):
    pair.send("one", "other", 1, 2, 3)
    pair.send("other", "one", 4)
    pair.pass_time(SECONDS)
    assert pair.takers["other"].numbers == [1, 2, 3] and pair.takers["one"].numbers == [4]
    assert pair.waited("other") == [LATENCY] * 3


def test_a_cut_holds_back_one_direction_until_it_is_whole(pair):
    pair.network.cut("one", "other", SECONDS)()
    pair.send("one", "other", 1)
    pair.send("other", "one", 2)
    pair.pass_time(2 * SECONDS)
    assert pair.waited("other") == [SECONDS] and pair.waited("one") == [LATENCY]


def test_a_split_holds_back_both(pair):
    pair.network.cut("one", "other", SECONDS, back=True)()
    pair.send("one", "other", 1)
    pair.send("other", "one", 2)
    pair.pass_time(2 * SECONDS)
    assert pair.waited("other") == [SECONDS] and pair.waited("one") == [SECONDS]


def test_a_clogged_path_lets_one_through_after_another(pair):
    pair.network.clog("one", "other", SECONDS)()
    pair.send("one", "other", 1, 2, 3)
    pair.send("other", "one", 4, 5)
    pair.pass_time(2 * SECONDS)
    first, second, third = pair.takers["other"].times
    assert (second - first, third - second) == pytest.approx((CLOGGED_SECONDS, CLOGGED_SECONDS))
    assert pair.waited("one") == [LATENCY] * 2


def test_a_slow_node_takes_in_one_after_another_and_sends_as_ever(pair):
    pair.network.slow_down("other", SECONDS)()
    pair.send("one", "other", 1, 2)
    pair.send("other", "one", 3, 4)
    pair.pass_time(2 * SECONDS)
    first, second = pair.takers["other"].times
    assert second - first == pytest.approx(SLOW_SECONDS)
    assert pair.waited("one") == [LATENCY] * 2


def test_a_break_loses_what_is_on_its_way_and_whoever_linked_is_told(pair):
    pair.send("one", "other", 1)
    pair.send("other", "one", 2)
    pair.network.break_connection("other", "one", SECONDS)()
    pair.send("one", "other", 3)
    pair.pass_time(2 * SECONDS)
    pair.send("one", "other", 4)
    pair.pass_time(SECONDS)
    assert pair.takers["other"].numbers == [4] and pair.takers["one"].numbers == []
    assert pair.network.lost == 3 and pair.broken == [("other", 1)]


def test_nothing_strikes_those_who_are_not_there(pair):
    pair.other.close()
    network = pair.network
    blows = [network.cut("one", "other", 1.0), network.clog("other", "one", 1.0)]
    blows += [network.slow_down("other", 1.0), network.break_connection("one", "other", 1.0)]
    assert blows == [None] * 4


def test_a_node_that_was_not_met_is_not_heard(pair):
    stranger = SimulatedLink(pair.network, "stranger", 1, pair.takers["one"])
    stranger.peers["other"] = pair.other
    stranger.send("other", [encode_header(Header(Mode.TELL, "", "actor", "actor")), b"1"])
    pair.pass_time(SECONDS)
    assert pair.takers["other"].numbers == [] and len(pair.takers["other"].reasons) == 1
