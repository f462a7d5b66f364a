"""Deaths of each actor just before and after messages of a handover between two hosts."""

from __future__ import annotations

from itertools import islice

import pytest
import typer

from pageant.actors.runtime.simulation import Fault
from pageant.scripts.commands.simulate import handover_deaths
from pageant.scripts.simulate.handovers import VICTIMS, Handover, find_handover

SEED = 13
STRIDE = 18
"""One death in so many is run: all take minutes, see `pageant simulate --handover-deaths`."""


@pytest.fixture(scope="module")
def handover() -> Handover:
    return find_handover(SEED)


def test_a_handover_has_many_messages_and_ends_without_deaths(handover):
    assert len(handover.times) >= 40
    assert [*handover.times] == sorted(handover.times)
    assert len([*handover.deaths()]) == 2 * len(handover.times) * len(VICTIMS)


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_death_at_a_message_of_a_handover_loses_and_leaves_nothing(handover, victim):
    # Each actor dies at other messages than the one before it in the list.
    first = VICTIMS.index(victim) * STRIDE // len(VICTIMS)
    for death in islice(handover.deaths([victim]), first, None, STRIDE):
        assert handover.violation(death) is None, death


def test_the_command_says_which_death_broke_something(monkeypatch, capsys):
    deaths = [Fault(0.1, "kill", "store-0"), Fault(0.2, "crash", "router")]
    monkeypatch.setattr(Handover, "deaths", lambda self: iter(deaths))
    monkeypatch.setattr(Handover, "violation", lambda self, death: "it is lost" if death.at > 0.1 else None)
    assert not handover_deaths(SEED, 1)
    told = capsys.readouterr()
    assert "router" in told.err and "it is lost" in told.err and "store-0" not in told.err
    assert "2 deaths" in told.out and "1 with a violation" in told.out


def test_the_command_refuses_a_seed_that_hands_nothing_over():
    with pytest.raises(typer.BadParameter, match="seed 0 hands nothing over"):
        handover_deaths(0, 1)
