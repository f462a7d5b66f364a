"""The observer's shell: asks everybody for their counters when it is asked itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeVar

from pageant.actors.observer.exposition import exposition
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.runtime.address import replica_of
from pageant.protocol.allocation import GetPoolStatistics
from pageant.protocol.errors import PageantError
from pageant.protocol.message import Message, Request
from pageant.protocol.scheduling import GetSchedulerStatistics
from pageant.protocol.statistics import (
    GetExecutorStatistics,
    GetFrontendStatistics,
    GetMetricsPage,
    GetObservation,
    MetricsPage,
    Observation,
)
from pageant.protocol.supervision import ActorEntry, GetDirectory, GetStatistics

R = TypeVar("R", bound=Message)

NODE = "node/"


class Observer(Actor):
    """Looks at a topology, and changes nothing in it."""

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the observer.

        Attributes:
            model: the checkpoint's folder; its name is what the model is called outside.
            served_model_name: what it is called instead.
            answer_seconds: who does not answer within this time is missing from an observation.
        """

        model: str = ""
        served_model_name: str | None = None
        answer_seconds: float = 2.0

        def __post_init__(self) -> None:
            if not 0 < self.answer_seconds < 1e6:
                raise ValueError(f"answer_seconds is {self.answer_seconds}; expected a number above 0")

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._model = options.served_model_name or Path(options.model).name

    @receives(concurrent=True)
    async def observe(self, request: GetObservation) -> Observation:
        """Everybody's counters as they are now."""
        directory = await self.ask("supervisor", GetDirectory(), timeout=self.options.answer_seconds)
        up = [entry for entry in directory.actors if entry.up]
        nodes, frontends, https, schedulers, pools, executors = await asyncio.gather(
            self._ask_all({entry.name: f"{NODE}{entry.name}" for entry in directory.nodes}, GetStatistics()),
            self._ask_all(_of_role(up, "frontend"), GetFrontendStatistics(open_max=request.open_max)),
            self._ask_all(_of_role(up, "http"), GetFrontendStatistics(open_max=request.open_max)),
            self._ask_all(_of_role(up, "scheduler"), GetSchedulerStatistics()),
            self._ask_all(_of_role(up, "blocks"), GetPoolStatistics()),
            self._ask_all(_of_role(up, "executor"), GetExecutorStatistics()),
        )
        return Observation(
            model=self._model,
            at=self.clock.now(),
            actors=directory.actors,
            nodes=nodes,
            frontends=frontends | https,
            schedulers=schedulers,
            pools=pools,
            executors=executors,
        )

    @receives(concurrent=True)
    async def page(self, request: GetMetricsPage) -> MetricsPage:
        """The same, as Prometheus reads it."""
        return MetricsPage(text=exposition(await self.observe(GetObservation())))

    async def _ask_all(self, addresses: dict[str, str], request: Request[R]) -> dict[str, R]:
        """What those answer that do, by name."""
        answers = await asyncio.gather(*(self._ask_one(address, request) for address in addresses.values()))
        return {name: answer for name, answer in zip(addresses, answers, strict=True) if answer is not None}

    async def _ask_one(self, address: str, request: Request[R]) -> R | None:
        """None where it is down, slow, or an actor of a user's own that does not know the question."""
        try:
            return await self.ask(address, request, timeout=self.options.answer_seconds)
        except PageantError:
            return None


def _of_role(actors: list[ActorEntry], role: str) -> dict[str, str]:
    """The actors of a role, in any replica and group."""
    names = [entry.name for entry in actors]
    return {name: name for name in names if name.removeprefix(replica_of(name)).partition("/")[0] == role}
