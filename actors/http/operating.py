"""Routes for operators, off unless `admin_routes` is on: models pause, sleep and wake, and their caches are emptied."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast, get_args

import msgspec
from litestar import Request as HttpRequest
from litestar import get, post
from litestar.exceptions import ClientException, PermissionDeniedException

from pageant.actors.http.openapi import describe
from pageant.actors.http.reading import read
from pageant.actors.http.service import Service
from pageant.actors.http.tenants import caller
from pageant.protocol.checks import expected
from pageant.protocol.errors import BadRequest, RemoteError
from pageant.protocol.lifecycle import (
    ANSWER_SECONDS,
    DRAIN_SECONDS,
    WAKE_TAGS,
    GetModelState,
    ModelState,
    PauseMode,
    PauseModel,
    PrefixCacheReset,
    ResetModelCache,
    ResumeModel,
    SleepModel,
    UpdateWeights,
    WakeModel,
)
from pageant.protocol.message import Request

Http = HttpRequest[Any, Any, Any]
R = TypeVar("R")

MODES: tuple[str, ...] = get_args(PauseMode)
LEVELS = ("0", "1", "2")
_MODEL = {"name": "model", "schema": {"type": "string"}}
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

Ask = Callable[[Request[Any], float], Awaitable[Any]]
"""Asks the lifecycle actor, for so many seconds."""


class Status(msgspec.Struct, kw_only=True):
    """The outcome of an operation."""

    status: str


class IsPaused(msgspec.Struct, kw_only=True):
    """Tells which of the models that were asked for are paused, by name, and whether any is."""

    is_paused: bool
    models: dict[str, bool]


class IsSleeping(msgspec.Struct, kw_only=True):
    """Tells the sleep level of each model that was asked for, by name (0 is awake), and whether any sleeps."""

    is_sleeping: bool
    models: dict[str, int]


class UpdateWeightsRequest(msgspec.Struct, kw_only=True):
    """`POST /update_weights`.

    Attributes:
        model_path: the checkpoint's folder, on the server's host.
        weight_version: what the weights are to be called; without one, as the folder is.
        mode: what becomes of open requests: abort, wait or keep.
        abort_all_requests: the same as the mode abort.
        beside: load them beside the present ones first, if there is memory for both.
    """

    model_path: str
    weight_version: str | None = None
    mode: str = "keep"
    abort_all_requests: bool = False
    beside: bool = True


class WeightInfo(msgspec.Struct, kw_only=True):
    """The version of the first model's weights, and that of each model by name."""

    weight_version: str
    models: dict[str, str]


class CacheReset(msgspec.Struct, kw_only=True):
    """The number of blocks that held a prefix, on the device and below it."""

    status: str
    blocks: int
    blocks_below: int


class Operators:
    """Lets operators in, where the server serves any, and reads what they ask for.

    Args:
        service: knows the models.
        ask: see `Ask`.
        enabled: the option `admin_routes`.
    """

    def __init__(self, service: Service, ask: Ask, *, enabled: bool) -> None:
        self._service, self._ask, self._enabled = service, ask, enabled

    def check(self) -> None:
        """Refuse whoever is no operator of this server.

        Raises:
            PermissionDeniedException: says what would let them in.
        """
        if not self._enabled:
            raise PermissionDeniedException(
                "this route is for operators, and is off; start the server with --admin-routes "
                "(actors.http.options.admin_routes: true)"
            )
        if not caller().is_operator:
            raise PermissionDeniedException(
                "this route is for operators, and this key is a tenant's; see --operator-key (operator_keys)"
            )

    def models(self, request: Http) -> dict[str, str]:
        """Return the models that are meant, by their names, with the prefixes of their actors: all that are served,
        unless the query names one."""
        name = request.query_params.get("model")
        chosen = [*self._service.models.values()] if name is None else [self._service.model(name)]
        return {served.parent or served.name: served.replica for served in chosen}

    async def ask(self, request: Request[R], seconds: float = ANSWER_SECONDS) -> R:
        """Ask the lifecycle actor."""
        try:
            answer: R = await self._ask(request, seconds)
        except RemoteError as error:  # told whole: it is an operator
            raise ClientException(error.detail, status_code=409) from None
        return answer

    async def states(self, request: Http) -> dict[str, ModelState]:
        """Return how the models are served that are meant, by name."""
        return {
            name: await self.ask(GetModelState(replica=replica))
            for name, replica in self.models(request).items()
        }

    @staticmethod
    def flag(request: Http, name: str, default: bool) -> bool:
        """Return a parameter of the query that is true or false."""
        text = request.query_params.get(name)
        if text is None:
            return default
        if text.lower() not in _BOOLEANS:
            raise BadRequest(f"{name} is {text!r:.100}; expected true or false", name)
        return _BOOLEANS[text.lower()]

    @staticmethod
    def choice(request: Http, name: str, known: Sequence[str], default: str) -> str:
        """Return a parameter of the query that is one of several words."""
        text = request.query_params.get(name, default)
        if text not in known:
            raise BadRequest(f"{name} is {text!r:.100}; {expected(text, known)}", name)
        return text


def routes(operators: Operators) -> list[Any]:
    """Return the routes for operators."""
    families = (_pausing, _resetting, _sleeping, _updating)
    return [route for family in families for route in family(operators)]


def _pausing(operators: Operators) -> list[Any]:
    @post("/pause", status_code=200, opt=describe(answer=Status, query=_PAUSE_QUERY))
    async def pause(request: Http) -> Status:
        """Compute nothing more until `/resume`: answered when no step is computed any more."""
        operators.check()
        mode: Any = operators.choice(request, "mode", MODES, "abort")
        if operators.flag(request, "wait_for_inflight_requests", False):  # an older name of vLLM's
            mode = "wait"
        clear = operators.flag(request, "clear_cache", True)
        for replica in operators.models(request).values():
            await operators.ask(PauseModel(replica=replica, mode=mode, clear_cache=clear), DRAIN_SECONDS)
        return Status(status="paused")

    @post("/resume", status_code=200, opt=describe(answer=Status, query=(_MODEL,)))
    async def resume(request: Http) -> Status:
        """Go on after `/pause`."""
        operators.check()
        for replica in operators.models(request).values():
            await operators.ask(ResumeModel(replica=replica))
        return Status(status="resumed")

    @get("/is_paused", opt=describe(answer=IsPaused, query=(_MODEL,)))
    async def is_paused(request: Http) -> IsPaused:
        """Tell whether a model is paused."""
        operators.check()
        states = await operators.states(request)
        paused = {name: state.paused is not None for name, state in states.items()}
        return IsPaused(is_paused=any(paused.values()), models=paused)

    return [pause, resume, is_paused]


def _resetting(operators: Operators) -> list[Any]:
    @post("/reset_prefix_cache", status_code=200, opt=describe(answer=CacheReset, query=_RESET_QUERY))
    async def reset_prefix_cache(request: Http) -> CacheReset:
        """Forget all cached prefixes."""
        operators.check()
        running = operators.flag(request, "reset_running_requests", False)
        below = operators.flag(request, "reset_external", True)
        found: list[PrefixCacheReset] = [
            await operators.ask(ResetModelCache(replica=replica, reset_running=running, below=below))
            for replica in operators.models(request).values()
        ]
        return CacheReset(
            status="reset",
            blocks=sum(one.blocks for one in found),
            blocks_below=sum(one.blocks_below for one in found),
        )

    return [reset_prefix_cache]


def _sleeping(operators: Operators) -> list[Any]:
    @post("/sleep", status_code=200, opt=describe(answer=Status, query=_SLEEP_QUERY))
    async def sleep(request: Http) -> Status:
        """Give back the memory of KV cache and weights until `/wake_up`. Requests that come meanwhile wait."""
        operators.check()
        level: Any = int(operators.choice(request, "level", LEVELS, "1"))
        mode: Any = operators.choice(request, "mode", MODES, "abort")
        for replica in operators.models(request).values():
            await operators.ask(SleepModel(replica=replica, level=level, mode=mode), DRAIN_SECONDS)
        return Status(status="asleep" if level else "paused")

    @post("/wake_up", status_code=200, opt=describe(answer=Status, query=_WAKE_QUERY))
    async def wake_up(request: Http) -> Status:
        """Compute again after `/sleep`; with `tags`, bring so much of the model back."""
        operators.check()
        tags: Any = [tag for tags in request.query_params.getall("tags", []) for tag in tags.split(",")]
        for tag in tags:
            if tag not in WAKE_TAGS:
                raise BadRequest(f"tags has {tag!r:.100}; {expected(tag, WAKE_TAGS)}", "tags")
        state = None
        for replica in operators.models(request).values():
            order = WakeModel(replica=replica, parts=tuple(tags) if tags else None)
            state = await operators.ask(order, DRAIN_SECONDS)
        return Status(status="awake" if state is None or not state.sleep_level else "asleep")

    @get("/is_sleeping", opt=describe(answer=IsSleeping, query=(_MODEL,)))
    async def is_sleeping(request: Http) -> IsSleeping:
        """Tell whether a model sleeps."""
        operators.check()
        levels = {name: state.sleep_level for name, state in (await operators.states(request)).items()}
        return IsSleeping(is_sleeping=any(levels.values()), models=levels)

    return [sleep, wake_up, is_sleeping]


def _updating(operators: Operators) -> list[Any]:
    @post("/update_weights", status_code=200, opt=describe(UpdateWeightsRequest, WeightInfo, query=(_MODEL,)))
    async def update_weights(request: Http) -> WeightInfo:
        """Go on with the weights of another checkpoint of the same shape."""
        operators.check()
        asked, _ = read(await request.body(), UpdateWeightsRequest)
        if asked.mode not in MODES:
            raise BadRequest(f"mode is {asked.mode!r:.100}; {expected(asked.mode, MODES)}", "mode")
        found: dict[str, str] = {}
        replicas = operators.models(request)
        if len(replicas) > 1:
            raise BadRequest(
                f"there are several models; expected ?model=, one of {', '.join(replicas)}", "model"
            )
        for name, replica in replicas.items():
            order = UpdateWeights(
                replica=replica,
                folder=asked.model_path,
                version=asked.weight_version,
                mode="abort" if asked.abort_all_requests else cast(PauseMode, asked.mode),
                beside=asked.beside,
            )
            found[name] = (await operators.ask(order, DRAIN_SECONDS)).weight_version
        return WeightInfo(weight_version=next(iter(found.values())), models=found)

    @get("/weight_info", opt=describe(answer=WeightInfo, query=(_MODEL,)))
    async def weight_info(request: Http) -> WeightInfo:
        """Say which version of its weights a model computes with."""
        operators.check()
        found = {name: state.weight_version for name, state in (await operators.states(request)).items()}
        return WeightInfo(weight_version=next(iter(found.values())), models=found)

    return [update_weights, weight_info]


def _flag_of(name: str) -> dict[str, Any]:
    return {"name": name, "schema": {"type": "boolean"}}


_PAUSE_QUERY = (
    *(_MODEL, {"name": "mode", "schema": {"enum": list(MODES)}}),
    *(_flag_of("clear_cache"), _flag_of("wait_for_inflight_requests")),
)
_SLEEP_QUERY = (
    *(_MODEL, {"name": "level", "schema": {"enum": [int(level) for level in LEVELS]}}),
    {"name": "mode", "schema": {"enum": list(MODES)}},
)
_WAKE_QUERY = (
    _MODEL,
    {"name": "tags", "schema": {"type": "array", "items": {"enum": list(WAKE_TAGS)}}},
)
_RESET_QUERY = (_MODEL, _flag_of("reset_running_requests"), _flag_of("reset_external"))
