"""`pageant ps`: the state that it prints of an actor."""

from __future__ import annotations

import msgspec
import pytest

from pageant.protocol.supervision import ActorEntry
from pageant.scripts.commands.ps import _state

UP = ActorEntry(name="executor/0", node="n", incarnation=1, features=(), up=True)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "up"),
        ({"facts": {"asleep": 2}}, "asleep (level 2)"),
        ({"up": False}, "starting"),
        ({"up": False, "reason": "it fell", "facts": {"asleep": 2}}, "down: it fell"),
        ({"up": False, "final": True, "reason": "it fell"}, "given up: it fell"),
    ],
)
def test_an_actor_is_up_or_asleep_or_down(changes, state):
    assert _state(msgspec.structs.replace(UP, **changes)) == state
