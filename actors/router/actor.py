"""The router's shell: follows the replicas of each model, and answers frontends."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import Any

from pageant.actors.router.core import RouterCore
from pageant.actors.router.handover import Handover
from pageant.actors.router.policies import make_policy
from pageant.actors.router.rebalancing import MoveAdvice
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.runtime.address import EVERY_REPLICA, is_follower, model_of, replica_of, role_of
from pageant.protocol.errors import BadRequest, PageantError, RemoteError
from pageant.protocol.following import FollowBlocks
from pageant.protocol.fronting import ServedModel
from pageant.protocol.replicas import DRAINING, ROLE, MoveRequests
from pageant.protocol.roles import ROUTER
from pageant.protocol.routing import GetRouterStatistics, Load, Route, Routed, RouterStatistics
from pageant.protocol.supervision import REMOVED, ActorChanged, ActorDown, ActorUp

FOLLOW_SECONDS = 1e6
"""The longest wait for an event of a block manager, which may have nothing to say for days."""
MOVE_SECONDS = 5.0
"""The longest wait for a frontend that is to move requests."""
TICKETS_PER_LIFE = 1 << 40
BLOCKS, SCHEDULER = "blocks", "scheduler"
OTHERS = (BLOCKS, "executor", "detokenizer")
"""Roles without which a replica computes nothing, beside its scheduler."""


class Router(Actor):
    """Advises frontends where to submit requests."""

    role = ROUTER

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the router.

        Attributes:
            served: the models. The topology fills it in.
            rebalance: whether requests that run move from a replica that lacks KV memory to one that has some.
            handover: whether some replicas compute prompts for others, where there are replicas of role `prefill`:
                `auto` where that is quicker for all, `always` or `never`.
            routing: who gets a request: `prefix` (the seconds until it is computed are fewest), `least` (the shortest
                wait), `round_robin`, `tenant` (all of a tenant's to one), or `module:Class` of your own.
        """

        served: tuple[ServedModel, ...] = ()
        routing: str = "prefix"
        handover: Handover = "auto"
        rebalance: bool = True

        def __post_init__(self) -> None:
            # A policy that cannot be made is refused before anything starts.
            make_policy(self.routing)

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._cores: dict[str, RouterCore] = {}
        # The tasks that follow each block manager, by its name.
        self._following: dict[str, asyncio.Event] = {}
        self._seconds = 0.0
        # Frontends that have asked for advice, by the prefix of their requests' model; the latest is the last.
        self._frontends: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._moved = 0

    async def on_start(self) -> None:
        first = self.incarnation * TICKETS_PER_LIFE  # no ticket of a former life is ours
        for model in self.options.served:
            if model.is_replicated:
                self._cores[model.replica] = RouterCore(
                    make_policy(self.options.routing),
                    first,
                    frozenset(OTHERS),
                    self.options.handover,
                    rebalance=self.options.rebalance,
                )
                for role in (SCHEDULER, *OTHERS):
                    self.watch(f"{model.replica}{EVERY_REPLICA}{role}")

    def _core_of(self, name: str) -> RouterCore:
        return self._cores[model_of(replica_of(name))]

    # The replicas.

    @receives
    def peer_up(self, event: ActorUp) -> None:
        """Route to a replica whose actors are up; follow its block manager."""
        prefix, role = replica_of(event.address), role_of(event.address)
        core = self._core_of(event.address)
        if role == SCHEDULER:
            draining = bool(event.facts.get(DRAINING))
            prefills = event.facts.get(ROLE) == "prefill"
            core.scheduler_up(prefix, event.incarnation, is_draining=draining, only_prefills=prefills)
            return
        if not is_follower(event.address):
            core.other_up(prefix, role)
        if role == BLOCKS:
            self._stop_following(event.address)
            self._following[event.address] = over = asyncio.Event()
            self.spawn(self._follow(event.address, prefix, over))

    @receives
    def peer_changed(self, event: ActorChanged) -> None:
        """Take note of a replica that is being drained."""
        if role_of(event.address) == SCHEDULER:
            draining = bool(event.facts.get(DRAINING))
            self._core_of(event.address).draining(replica_of(event.address), is_draining=draining)

    @receives
    def peer_down(self, event: ActorDown) -> None:
        """Route nothing to a replica that lacks an actor; forget the blocks of a manager that is down."""
        core, prefix, role = self._core_of(event.address), replica_of(event.address), role_of(event.address)
        if role == SCHEDULER:
            core.scheduler_down(prefix, event.incarnation)
        elif not is_follower(event.address):
            core.other_down(prefix, role)
        if role == BLOCKS:
            self._stop_following(event.address)
            core.blocks_gone(prefix)
        if event.reason == REMOVED:
            core.remove(prefix)

    def _stop_following(self, manager: str) -> None:
        if (over := self._following.pop(manager, None)) is not None:
            over.set()

    async def _follow(self, manager: str, prefix: str, over: asyncio.Event) -> None:
        """Take in a block manager's events, until its life is over."""
        core = self._core_of(manager)
        with contextlib.suppress(PageantError):  # it is down, or somebody's own that has no followers
            async for events in self.stream(manager, FollowBlocks(tokens=False), FOLLOW_SECONDS):
                if over.is_set():
                    return
                core.blocks_changed(prefix, events)

    @receives
    def loaded(self, load: Load) -> None:
        """Take over a replica's work."""
        model = model_of(replica_of(self.sender))
        core = self._cores.get(model)
        if core is None:
            return
        core.loaded(replica_of(self.sender), self.sender_incarnation, load)
        if self._frontends[model] and (advice := core.rebalance(self.clock.now())) is not None:
            self.spawn(self._rebalance(model, advice))

    async def _rebalance(self, model: str, advice: MoveAdvice) -> None:
        """Have frontends move requests, one frontend after another, the latest to ask first."""
        left = advice.num_tokens
        for frontend in reversed([*self._frontends[model]]):
            request = MoveRequests(source=advice.source, target=advice.target, num_tokens=left)
            try:
                moved = await self.ask(frontend, request, MOVE_SECONDS)
            except (BadRequest, RemoteError):
                # One of the replicas has just left, or has lost an actor: no other frontend moves requests there.
                return
            except PageantError:  # it is down, and asks again when it is up
                self._frontends[model].pop(frontend, None)
                continue
            left -= moved.num_tokens
            self._moved += moved.num_sequences

    # Decisions.

    @receives
    def route(self, asked: Route) -> Routed:
        """Return where requests had best be submitted."""
        began = self.clock.now()
        core = self._cores.get(asked.model)
        if core is None:
            raise BadRequest(f"no model with replicas has the prefix {asked.model!r}", "model")
        self._frontends[asked.model].pop(self.sender, None)
        self._frontends[asked.model][self.sender] = None
        routed = core.route(asked, began)
        self._seconds += self.clock.now() - began
        return routed

    @receives
    def statistics(self, request: GetRouterStatistics) -> RouterStatistics:
        """Return the counters of all models, and their replicas."""
        cores = self._cores.values()
        return RouterStatistics(
            decisions=sum(core.decisions for core in cores),
            seconds=self._seconds,
            tokens=sum(core.tokens for core in cores),
            hit_tokens=sum(core.hit_tokens for core in cores),
            policy_failures=sum(core.policy_failures for core in cores),
            replicas=dict(one for core in cores for one in core.replicas()),
            moved=self._moved,
        )
