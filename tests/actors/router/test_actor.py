"""The router's shell: frontends that refuse, or do not answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pageant.actors.router.actor import Router
from pageant.protocol.errors import BadRequest, PeerGone, RemoteError
from pageant.protocol.failure import error_of, failure_of
from pageant.protocol.replicas import RequestsMoved


class Stage:
    """A router whose frontends answer what the test says, the latest to ask first."""

    def __init__(self, *answers: RequestsMoved | Exception) -> None:
        self.answers, self.asked = list(answers), []
        self.router = Router(Router.Options())
        self.router.ask = self.ask
        self.router._frontends["m/"] = {"a": None, "b": None}

    async def ask(self, address, request, timeout):
        self.asked.append(address)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise error_of(failure_of(answer, address))
        return answer

    async def rebalance(self) -> list[str]:
        """Have requests moved; return the frontends that are still known."""
        await self.router._rebalance("m/", SimpleNamespace(source="m/0/", target="m/1/", num_tokens=64))
        return [*self.router._frontends["m/"]]


MOVED = RequestsMoved(num_sequences=1, num_tokens=32)


@pytest.mark.parametrize("refusal", [BadRequest("no such replica"), RemoteError("b", "KeyError", "m/1/")])
async def test_a_frontend_that_refuses_a_move_is_asked_again_at_the_next(refusal):
    stage = Stage(refusal)
    assert await stage.rebalance() == ["a", "b"]
    assert stage.asked == ["b"], "what one refuses, others would"


async def test_a_frontend_that_is_down_is_forgotten_until_it_asks_for_advice():
    stage = Stage(PeerGone("b is down"), MOVED)
    assert await stage.rebalance() == ["a"]
    assert stage.asked == ["b", "a"] and stage.router._moved == 1
