"""The observer's shell: asks everybody for their counters when it is asked itself."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

import msgspec

from pageant.actors.observer.exposition import exposition
from pageant.actors.observer.otlp import Failure, Outgoing, check_endpoint, encode, post
from pageant.actors.observer.vllm_names import vllm_page
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.runtime.address import role_of
from pageant.protocol.allocation import GetPoolStatistics
from pageant.protocol.errors import PageantError
from pageant.protocol.fronting import GetHttpStatistics, ServedModel
from pageant.protocol.message import Message, Request
from pageant.protocol.routing import GetRouterStatistics
from pageant.protocol.scheduling import GetSchedulerStatistics
from pageant.protocol.statistics import (
    FrontendStatistics,
    GetExecutorStatistics,
    GetFrontendStatistics,
    GetMetricsPage,
    GetObservation,
    MetricsPage,
    Observation,
)
from pageant.protocol.storing import GetStoreStatistics
from pageant.protocol.supervision import ActorEntry, GetDirectory, GetStatistics
from pageant.protocol.tracing import Spans

R = TypeVar("R", bound=Message)

log = logging.getLogger("pageant.observer")

NODE = "node/"
EXPORT_SECONDS = 0.5  # that spans wait for others
EXPORT_SECONDS_MAX = 30.0  # where nobody takes them


class Observer(Actor):
    """Looks at a topology, and changes nothing in it."""

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the observer.

        Attributes:
            served: the models. The topology fills it in.
            answer_seconds: who does not answer within this time is missing from an observation.
            otlp_traces_endpoint: where the spans of traced requests go, as OTLP over HTTP; of a URL without a path
                it is `/v1/traces`.
            otlp_headers: of what is sent there.
            otlp_service_name: what this service is called there.
            vllm_metrics: show metrics under vLLM's names too.
        """

        served: tuple[ServedModel, ...] = ()
        answer_seconds: float = 2.0
        otlp_traces_endpoint: str | None = None
        otlp_headers: dict[str, str] = msgspec.field(default_factory=dict)
        otlp_service_name: str = "pageant"
        vllm_metrics: bool = False

        def __post_init__(self) -> None:
            if not 0 < self.answer_seconds < 1e6:
                raise ValueError(f"answer_seconds is {self.answer_seconds}; expected a number above 0")
            if self.otlp_traces_endpoint is not None:
                check_endpoint(self.otlp_traces_endpoint, self.otlp_headers)

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._outgoing: Outgoing | None = None
        self._sending = asyncio.Event()
        self._has_said = False

    async def on_start(self) -> None:
        if self.options.otlp_traces_endpoint is not None:
            self._outgoing = Outgoing()
            self.spawn(self._export())

    async def on_stop(self) -> None:
        if self._outgoing is not None:
            await self._send_all()

    @receives(concurrent=True)
    async def observe(self, request: GetObservation) -> Observation:
        """Everybody's counters as they are now."""
        directory = await self.ask("supervisor", GetDirectory(), timeout=self.options.answer_seconds)
        up = [entry for entry in directory.actors if entry.up]
        steps = GetExecutorStatistics(steps_max=request.steps_max, steps_seconds=request.steps_seconds)
        nodes, frontends, servers, schedulers, pools, executors = await asyncio.gather(
            self._ask_all({entry.name: f"{NODE}{entry.name}" for entry in directory.nodes}, GetStatistics()),
            self._ask_frontends(_of_role(up, "frontend"), request.open_max),
            self._ask_frontends(_of_role(up, "http"), request.open_max),
            self._ask_all(_of_role(up, "scheduler"), GetSchedulerStatistics()),
            self._ask_all(_of_role(up, "blocks"), GetPoolStatistics()),
            self._ask_all(_of_role(up, "executor"), steps),
        )
        https = await self._ask_all(_of_role(up, "http"), GetHttpStatistics())
        routers = await self._ask_all(_of_role(up, "router"), GetRouterStatistics())
        stores = await self._ask_all(_of_role(up, "store"), GetStoreStatistics())
        return Observation(
            models={model.replica: model.name for model in self.options.served},
            at=self.clock.now(),
            actors=directory.actors,
            nodes=nodes,
            frontends=frontends | servers,
            schedulers=schedulers,
            pools=pools,
            executors=executors,
            https=https,
            spans=dict(self._outgoing.counts) if self._outgoing is not None else {},
            routers=routers,
            stores=stores,
        )

    @receives(concurrent=True)
    async def page(self, request: GetMetricsPage) -> MetricsPage:
        """The same, as Prometheus reads it."""
        seen = await self.observe(GetObservation())
        text = exposition(seen)
        return MetricsPage(text=text + vllm_page(seen) if self.options.vllm_metrics else text)

    @receives
    def spans(self, message: Spans) -> None:
        """Take spans, which wait until there are many, or for a moment."""
        if self._outgoing is not None:
            self._outgoing.add(message.spans)
            self._sending.set()

    async def _export(self) -> None:
        """Sends what there is; what cannot be sent now is tried again, as long as there is room for what comes."""
        pause = EXPORT_SECONDS
        while True:
            await self._sending.wait()
            self._sending.clear()
            await asyncio.sleep(pause)
            pause = EXPORT_SECONDS if await self._send_all() else min(2 * pause, EXPORT_SECONDS_MAX)

    async def _send_all(self) -> bool:
        """Send spans. Return whether all of them were taken."""
        outgoing, options = self._outgoing, self.options
        assert outgoing is not None
        while batch := outgoing.next():
            body = encode(batch, options.otlp_service_name)
            failure = await self.offload(post, options.otlp_traces_endpoint, options.otlp_headers, body)
            if failure is not None and failure.passes:
                outgoing.put_back(batch)
                self._sending.set()
                self._say(failure)
                return False
            outgoing.done(batch, "failed" if failure is not None else "exported")
            if failure is not None:
                self._say(failure)
        return True

    def _say(self, failure: Failure) -> None:
        """The first time aloud; it will be so for as long as nothing is done about it."""
        level = logging.DEBUG if self._has_said else logging.WARNING
        self._has_said = True
        log.log(level, "traces cannot be sent to %s: %s", self.options.otlp_traces_endpoint, failure.reason)

    async def _ask_all(self, addresses: dict[str, str], request: Request[R]) -> dict[str, R]:
        """Return the answers of those that answer, by name."""
        answers = await asyncio.gather(*(self._ask_one(address, request) for address in addresses.values()))
        return {name: answer for name, answer in zip(addresses, answers, strict=True) if answer is not None}

    async def _ask_frontends(self, addresses: dict[str, str], open_max: int) -> dict[str, FrontendStatistics]:
        """Return the frontends' answers for each model, under its replica and the frontend's name."""
        found: dict[str, FrontendStatistics] = {}
        for model in self.options.served:
            question = GetFrontendStatistics(open_max=open_max, replica=model.replica)
            answers = await self._ask_all(addresses, question)
            found |= {model.replica + name: answer for name, answer in answers.items()}
        return found

    async def _ask_one(self, address: str, request: Request[R]) -> R | None:
        """Return an actor's answer; None where it is down, slow, or a user's own that does not know the question."""
        try:
            return await self.ask(address, request, timeout=self.options.answer_seconds)
        except PageantError:
            return None


def _of_role(actors: list[ActorEntry], role: str) -> dict[str, str]:
    """The actors of a role, in any replica and group."""
    return {entry.name: entry.name for entry in actors if role_of(entry.name) == role}
