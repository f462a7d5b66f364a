"""Trials of an actor that dies of some of what it is asked: who is asked again, and alone."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pageant.actors.frontend.outputs import RequestFailed
from pageant.actors.frontend.trials import DEATHS_ALONE_MAX, DEATHS_SUSPECT, Trials
from pageant.actors.runtime.clock import MonotonicClock
from pageant.protocol.errors import GivenUp, NoSuchActor, PeerGone
from pageant.protocol.tokenizing import Tokenize


class Mortal:
    """Answers in so many turns of the loop; dies, with all that it has in its hands, of what is deadly."""

    def __init__(self, deaths_max: int = 1000) -> None:
        self.deaths, self.deaths_max = 0, deaths_max
        self.held: list[asyncio.Future[None]] = []
        self.alone: list[str] = []
        self.charged = 0
        self.clock = MonotonicClock()

    async def ask(self, address, request, timeout, *, again, deaths_max):
        assert again and address == "tokenizer"
        for _ in range(deaths_max):
            if self.deaths >= self.deaths_max:
                raise GivenUp("for good")
            died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.held.append(died)
            try:
                for _turn in range(len(request.text)):
                    await asyncio.sleep(0)
                    if died.done():
                        break
                else:
                    if not request.text.startswith("deadly"):
                        return request.text
                    self._die(request.text)
            finally:
                self.held.remove(died)
        raise PeerGone("it died")

    def tell(self, address, message):
        assert address == "supervisor" and message.name == "tokenizer"
        self.charged += message.deaths

    def _die(self, text: str) -> None:
        self.deaths += 1
        if len(self.held) == 1:
            self.alone.append(text)
        for held in self.held:
            held.done() or held.set_result(None)


def ask_all(mortal: Mortal, texts: list[str]) -> list[object]:
    async def run() -> list[object]:
        trials = Trials(mortal, "tokenizer")  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            return await asyncio.gather(
                *(trials.ask(Tokenize(text=text), 60.0) for text in texts), return_exceptions=True
            )

    return asyncio.run(run())


@given(st.lists(st.integers(1, 60), max_size=12), st.lists(st.integers(0, 20), max_size=4), st.randoms())
def test_what_kills_is_found_and_everything_else_is_answered(harmless, deadly, chance):
    texts = ["x" * length for length in harmless] + ["deadly" + "x" * length for length in deadly]
    chance.shuffle(texts)
    mortal = Mortal()
    for text, found in zip(texts, ask_all(mortal, texts), strict=True):
        if text.startswith("deadly"):
            assert isinstance(found, RequestFailed) and "died 4 times with it" in str(found)
        else:
            assert found == text
    assert len(mortal.alone) >= DEATHS_ALONE_MAX * len(deadly), "each was tried with nothing beside it"
    assert mortal.deaths <= len(deadly) * (DEATHS_SUSPECT + DEATHS_ALONE_MAX)


def test_one_that_is_given_up_is_no_fault_of_the_request():
    (found,) = ask_all(Mortal(deaths_max=1), ["deadly"])
    assert isinstance(found, GivenUp)


def test_who_gives_up_waiting_holds_up_nobody():
    async def run() -> str:
        trials = Trials(Mortal(), "tokenizer")  # type: ignore[arg-type]
        long = asyncio.create_task(trials.ask(Tokenize(text="x" * 10_000), 60.0))
        suspect = asyncio.create_task(trials.ask(Tokenize(text="deadly"), 60.0))
        for _ in range(100):
            await asyncio.sleep(0)
        assert trials._suspects
        waiting = asyncio.create_task(trials.ask(Tokenize(text="y"), 60.0))
        await asyncio.sleep(0)
        for task in (waiting, suspect, long):
            task.cancel()
        await asyncio.gather(waiting, suspect, long, return_exceptions=True)
        return await asyncio.wait_for(trials.ask(Tokenize(text="z"), 60.0), 60)

    assert asyncio.run(run()) == "z"


class Leaving:
    """Two actors of a role, of which the first is not in the topology any more."""

    def __init__(self) -> None:
        self.clock = MonotonicClock()
        self.asked: list[str] = []

    async def ask(self, address, request, timeout, *, again, deaths_max):
        self.asked.append(address)
        if address == "replica-0/grammar":
            raise NoSuchActor("there is no actor 'replica-0/grammar' here")
        return address


def test_one_whose_replica_was_removed_is_looked_for_elsewhere():
    leaving, address = Leaving(), ["replica-0/grammar"]

    async def another() -> None:
        address[0] = "replica-1/grammar"

    trials = Trials(leaving, lambda: address[0], another)  # type: ignore[arg-type]
    assert asyncio.run(trials.ask(Tokenize(text=""), 60.0)) == "replica-1/grammar"
    assert leaving.asked == ["replica-0/grammar", "replica-1/grammar"]


def test_one_that_is_nowhere_is_asked_no_longer_than_the_request_may_take():
    async def nothing() -> None: ...

    trials = Trials(Leaving(), "replica-0/grammar", nothing)  # type: ignore[arg-type]
    with pytest.raises(NoSuchActor):
        asyncio.run(trials.ask(Tokenize(text=""), 0.02))
