"""Routes for operators that add, drain and remove replicas of a model; see `operating`."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import get, post

from pageant.actors.http.openapi import describe
from pageant.actors.http.operating import Http, Operators
from pageant.protocol.errors import BadRequest
from pageant.protocol.lifecycle import DRAIN_SECONDS
from pageant.protocol.replicas import (
    AddReplica,
    DrainReplica,
    GetReplicas,
    RemoveReplica,
    ReplicaEntry,
    Replicas,
)

PATIENCE = "30"
_MODEL = {"name": "model", "schema": {"type": "string"}}
_NAME = {"name": "name", "required": True, "schema": {"type": "string"}}
_OPTIONAL_NAME = {"name": "name", "schema": {"type": "string"}}
_FORCE = {"name": "force", "schema": {"type": "boolean"}}
_PATIENCE = {"name": "patience", "schema": {"type": "number"}}


class ReplicaList(msgspec.Struct, kw_only=True):
    """The replicas of a model, and the name of the one that was changed."""

    replicas: tuple[ReplicaEntry, ...]
    name: str = ""


def routes(operators: Operators) -> list[Any]:
    """The routes of this family."""

    @get("/replicas", opt=describe(answer=ReplicaList, query=(_MODEL,)))
    async def replicas(request: Http) -> ReplicaList:
        """List the replicas of a model."""
        operators.check()
        return _list(await operators.ask(GetReplicas(model=_model(operators, request)), DRAIN_SECONDS))

    @post("/replicas/add", status_code=200, opt=describe(answer=ReplicaList, query=(_MODEL, _OPTIONAL_NAME)))
    async def add(request: Http) -> ReplicaList:
        """Start another replica; answered when it takes requests."""
        operators.check()
        name = request.query_params.get("name", "")
        order = AddReplica(model=_model(operators, request), name=name)
        return _list(await operators.ask(order, DRAIN_SECONDS))

    @post(
        "/replicas/drain",
        status_code=200,
        opt=describe(answer=ReplicaList, query=(_MODEL, _NAME, _PATIENCE, _FORCE)),
    )
    async def drain(request: Http) -> ReplicaList:
        """Give a replica no new requests, and remove it when it has none."""
        operators.check()
        order = DrainReplica(
            model=_model(operators, request),
            name=_name(request),
            patience=_seconds(request),
            force=operators.flag(request, "force", False),
        )
        return _list(await operators.ask(order, DRAIN_SECONDS))

    @post(
        "/replicas/remove", status_code=200, opt=describe(answer=ReplicaList, query=(_MODEL, _NAME, _FORCE))
    )
    async def remove(request: Http) -> ReplicaList:
        """Remove a replica at once; its requests go on at others."""
        operators.check()
        order = RemoveReplica(
            model=_model(operators, request),
            name=_name(request),
            force=operators.flag(request, "force", False),
        )
        return _list(await operators.ask(order, DRAIN_SECONDS))

    return [replicas, add, drain, remove]


def _list(found: Replicas) -> ReplicaList:
    return ReplicaList(replicas=found.replicas, name=found.name)


def _model(operators: Operators, request: Http) -> str:
    models = {**operators.models(request)}
    if len({*models.values()}) > 1:
        raise BadRequest(f"there are several models; expected ?model=, one of {', '.join(models)}", "model")
    return next(iter(models.values()))


def _name(request: Http) -> str:
    name: str | None = request.query_params.get("name")
    if not name:
        raise BadRequest("name is not given; expected a replica's, such as replica-1", "name")
    return name


def _seconds(request: Http) -> float:
    text = request.query_params.get("patience", PATIENCE)
    try:
        return float(text)
    except ValueError:
        raise BadRequest(f"patience is {text!r:.100}; expected seconds", "patience") from None
