"""Routes for operators that swap the scheduling policy of a scheduler while it serves; see `operating`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

import msgspec
from litestar import get, post
from litestar.exceptions import ClientException

from pageant.actors.http.openapi import describe
from pageant.actors.http.operating import Http, Operators
from pageant.actors.runtime.address import SUPERVISOR, role_of
from pageant.protocol.checks import expected
from pageant.protocol.errors import BadRequest, RemoteError
from pageant.protocol.message import Message, Request
from pageant.protocol.plugins import plugins_of
from pageant.protocol.recording import GetActor
from pageant.protocol.roles import SCHEDULER
from pageant.protocol.supervision import GetDirectory, SwapActor

R = TypeVar("R", bound=Message)
POLICIES = ("fcfs", "priority", "shortest", "fair", "deadline")
"""The scheduler's own; see its options."""
DEFAULT = "fcfs"
SECONDS = 60.0
_NAME = {"name": "name", "required": True, "schema": {"type": "string"}}
_POLICY = {"name": "policy", "required": True, "schema": {"type": "string"}}


class Ask(Protocol):
    """Asks an actor, for so many seconds."""

    def __call__(self, address: str, request: Request[R], timeout: float) -> Awaitable[R]: ...


class SchedulingPolicies(msgspec.Struct, kw_only=True):
    """The policies that a scheduler can have, and the one that each scheduler has, by the actors' names."""

    policies: list[str]
    schedulers: dict[str, str]


def routes(operators: Operators, ask: Ask) -> list[Any]:
    """Return the routes of this family."""

    @get("/schedulers", opt=describe(answer=SchedulingPolicies))
    async def schedulers() -> SchedulingPolicies:
        """List the schedulers with their policies."""
        operators.check()
        return await _present(ask)

    @post(
        "/schedulers/policy", status_code=200, opt=describe(answer=SchedulingPolicies, query=(_NAME, _POLICY))
    )
    async def swap(request: Http) -> SchedulingPolicies:
        """Swap a scheduler for one with another policy. Requests go on; it is as it was if the new one cannot start."""
        operators.check()
        present = await _present(ask)
        name = _one_of(request, "name", [*present.schedulers])
        options = msgspec.json.encode({"policy": _one_of(request, "policy", present.policies)}).decode()
        try:
            swapped = await ask(SUPERVISOR, SwapActor(name=name, options=options), timeout=SECONDS)
        except RemoteError as error:  # told whole: it is an operator
            raise ClientException(error.detail, status_code=409) from None
        if swapped.error:
            raise ClientException(f"{name} goes on as it was: {swapped.error}", status_code=409)
        return await _present(ask)

    return [schedulers, swap]


async def _present(ask: Ask) -> SchedulingPolicies:
    directory = await ask(SUPERVISOR, GetDirectory(), timeout=SECONDS)
    names = sorted(actor.name for actor in directory.actors if role_of(actor.name) == SCHEDULER.name)
    found = {}
    for name in names:
        described = await ask(SUPERVISOR, GetActor(name=name), timeout=SECONDS)
        found[name] = msgspec.json.decode(described.options or "{}").get("policy", DEFAULT)
    return SchedulingPolicies(policies=[*POLICIES, *plugins_of("policies")], schedulers=found)


def _one_of(request: Http, name: str, known: list[str]) -> str:
    """Return a parameter of the query that is one of several names. Code is not named over HTTP: no module:Class."""
    text: str = request.query_params.get(name, "")
    if text not in known:
        raise BadRequest(f"{name} is {text!r:.100}; {expected(text, known)}", name)
    return text
