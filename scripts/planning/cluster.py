"""A cluster in model time: replicas behind the router's real core, on one heap of events."""

from __future__ import annotations

import gc
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pageant.actors.router.core import RouterCore
from pageant.actors.router.handover import Handover
from pageant.actors.router.policies import make_policy
from pageant.actors.router.rebalancing import MoveAdvice
from pageant.protocol.arrays import int32
from pageant.protocol.errors import BadRequest
from pageant.protocol.routing import LOAD_SECONDS, Route
from pageant.protocol.serving import Resumption
from pageant.scripts.planning.copies import Action, PlannedStore
from pageant.scripts.planning.device import TOKEN
from pageant.scripts.planning.outcome import Outcome, RequestTimes, summed_up
from pageant.scripts.planning.replica import PlannedReplica, ReplicaShape
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.planning.serving_costs import NO_SERVING, ServingCosts
from pageant.scripts.replay.costs import StepCosts

SERVED = ("stop", "length")
OBJECTS_BETWEEN_COLLECTIONS = 200_000


@contextmanager
def _few_collections() -> Iterator[None]:
    """Have the garbage collector look at fewer objects, less often: here are many, and few form cycles."""
    before = gc.get_threshold()
    gc.freeze()  # without a collection before it, which takes as long as a small plan where others have many objects
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


class PlannedCluster:
    """Replicas of one shape, and a router if there are several.

    Args:
        speeds: how many times as fast as `costs` says each replica is.
        routing: the router's policy.
        rebalance: whether requests move from replicas that lack KV memory. They are computed again where they go on,
            but for what the store has.
        prefills: the first so many replicas compute prompts for the others; 0 is none.
        handover: whether they do; see `Router.Options`.
        copy_seconds: that the block of a token takes to be copied to a store that all share, or from it; None is no
            store.
        serving: what requests take outside of steps.
    """

    def __init__(
        self,
        shape: ReplicaShape,
        costs: StepCosts,
        speeds: Sequence[float] = (1.0,),
        routing: str = "prefix",
        *,
        rebalance: bool = True,
        prefills: int = 0,
        handover: Handover = "auto",
        copy_seconds: float | None = None,
        serving: ServingCosts = NO_SERVING,
    ) -> None:
        if prefills and prefills >= len(speeds):
            raise BadRequest(
                f"{prefills} of {len(speeds)} replicas compute prompts; expected another for outputs",
                "prefills",
            )
        store = None if copy_seconds is None else PlannedStore(copy_seconds)
        # Seconds of model time.
        self.now = 0.0
        self.requests: list[RequestTimes] = []
        self._serving, self._drawn = serving, serving.draw()
        # When the last request reached the router, and the seconds that the outputs of each take to its client.
        self._reached_at = -math.inf
        self._output_seconds: list[float] = []
        self.replicas = {
            f"replica-{number}/": PlannedReplica(f"replica-{number}/", shape, costs, speed, store)
            for number, speed in enumerate(speeds)
        }
        self._router: RouterCore | None = None
        if len(speeds) > 1:
            self._router = RouterCore(make_policy(routing), handover=handover, rebalance=rebalance)
        # Open requests of each replica by number, those that came last at the end.
        self._open: dict[str, dict[int, PlannedRequest]] = {name: {} for name in self.replicas}
        # Where requests go on whose prompts are computed elsewhere, and those that did.
        self._next: dict[int, str] = {}
        self._handed_over: set[int] = set()
        # How often a request changed its replica.
        self.moves = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        # When the plan of a replica is over that has an event on the heap, and replicas whose load has one.
        self._stepping: dict[str, float] = {}
        self._reporting: set[str] = set()
        for number, (name, replica) in enumerate(self.replicas.items()):
            self._introduce(name, replica, only_prefills=number < prefills)

    def run(self, requests: Iterable[PlannedRequest]) -> Outcome:
        """Serve all requests to their ends, and sum up. They come in order of arrival, each when it is due."""
        self._expect_next(iter(requests))
        with _few_collections():
            while self._events:
                self.now, _, action = heapq.heappop(self._events)
                action()
        replicas = self.replicas.values()
        return summed_up(
            self.requests,
            len(self.replicas),
            [one.busy_seconds for one in replicas],
            max(one.memory for one in replicas),
            sum(one.preemptions for one in replicas),
            self.moves,
            len(self._handed_over),
        )

    def _introduce(self, name: str, replica: PlannedReplica, *, only_prefills: bool) -> None:
        """Tell the router of a replica that is up and has nothing to do."""
        if self._router is None:
            return
        self._router.scheduler_up(name, 1, only_prefills=only_prefills)
        for events in replica.take_events():
            self._router.blocks_changed(name, events)
        load = replica.take_load()
        if load is not None:
            self._router.loaded(name, 1, load)

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def _expect_next(self, requests: Iterable[PlannedRequest]) -> None:
        waiting = iter(requests)
        request = next(waiting, None)
        if request is not None:
            before, after = next(self._drawn)
            self._reached_at = max(request.at + before, self._reached_at + self._serving.handling)
            self._output_seconds.append(after)
            self._at(self._reached_at, lambda: self._arrive(request, waiting))

    def _arrive(self, request: PlannedRequest, others: Iterable[PlannedRequest]) -> None:
        number = len(self.requests)
        place, ticket, expected, via = self._route(request)
        name = via or place
        if via:
            self._next[number] = place
        times = RequestTimes(request.at, len(request.prompt), replica=name)
        self.requests.append(times)
        self._open[name][number] = request
        replica = self.replicas[name]
        replica.submit(number, request, self.now, ticket=ticket, expected=expected, handover=bool(via))
        self._follow(name)
        self._expect_next(others)

    def _route(self, request: PlannedRequest) -> tuple[str, int, int, str]:
        """Return the replica that gets a request, the router's ticket, the tokens that are to be computed, and the
        replica that computes the prompt before; "" for none."""
        if self._router is None:
            return next(iter(self.replicas)), 0, len(request.prompt), ""
        asked = Route(
            model="",
            token_ids=request.prompt,
            lengths=int32([len(request.prompt)]),
            max_tokens=int32([request.most_tokens]),
            salts=(None,),
            extra_keys=((),),
            adapters=(None,),
            tenants=("",),
            text_tokens=int32([len(request.prompt)]),
        )
        routed = self._router.route(asked, self.now)
        via = routed.via[0] if routed.via else ""
        return routed.places[0], int(routed.tickets[0]), int(routed.expected_tokens[0]), via

    def _follow(self, name: str) -> None:
        """Take what came of a replica's last event, and wait for its next step."""
        replica = self.replicas[name]
        for said in replica.take_said():
            after = self._output_seconds[said.number]
            self.requests[said.number].output([at + after for at in said.times] if after else said.times)
        for progress in replica.take_progress():
            times = self.requests[progress.number]
            if progress.cached is not None and progress.number not in self._handed_over:
                times.cached_tokens = progress.cached
            if progress.ended is not None:
                times.refused = progress.ended not in SERVED
                del self._open[name][progress.number]
        for number in replica.take_handed():
            self._handed_over.add(number)
            self._go_on(number, self._open[name].pop(number), self._next.pop(number))
        for at, action in replica.take_timers():
            self._at(max(at, self.now), partial(self._happen, name, action))
        self._await_step(name, replica.next_at)
        if self._router is not None:
            for events in replica.take_events():
                self._router.blocks_changed(name, events)
            if name not in self._reporting:
                self._reporting.add(name)
                self._at(self.now + LOAD_SECONDS, lambda: self._report(name))

    def _happen(self, name: str, action: Action) -> None:
        self.replicas[name].happen(action, self.now)
        self._follow(name)

    def _go_on(self, number: int, request: PlannedRequest, place: str) -> None:
        """Submit a request, with its output so far, at another replica."""
        times = self.requests[number]
        said = int32([TOKEN] * times.output_tokens)
        self._open[place][number] = request
        times.replica = place
        past = Resumption(token_ids=said, age=self.now - times.arrived_at)
        self.replicas[place].submit(number, request, self.now, past=past)
        self._follow(place)

    def _await_step(self, name: str, at: float | None) -> None:
        """Have a replica's plan end at `at`, which may be sooner than it was."""
        if at is not None and self._stepping.get(name) != at:
            self._stepping[name] = at
            self._at(at, lambda: self._step(name, at))

    def _step(self, name: str, at: float) -> None:
        if self._stepping.get(name) == at:  # it did not end sooner
            del self._stepping[name]
            self.replicas[name].step(self.now)
            self._follow(name)

    def _report(self, name: str) -> None:
        """Tell the router what a replica has to do, at most once in `LOAD_SECONDS`."""
        self._reporting.discard(name)
        load = self.replicas[name].take_load()
        if load is not None and self._router is not None:
            self._router.loaded(name, 1, load)
            if (advice := self._router.rebalance(self.now)) is not None:
                self._move(advice)

    def _move(self, advice: MoveAdvice) -> None:
        """Move the requests that a replica got last, as many as have at most the advised tokens."""
        source, left = self.replicas[advice.source], advice.num_tokens
        moving: dict[int, PlannedRequest] = {}
        for number, request in reversed([*self._open[advice.source].items()]):
            tokens = len(request.prompt) + self.requests[number].output_tokens
            if tokens <= left and source.release(number, self.now):
                left -= tokens
                moving[number] = request
        self._follow(advice.source)  # by which all of their output is known
        for number, request in moving.items():
            del self._open[advice.source][number]
            self._go_on(number, request, advice.target)
        self.moves += len(moving)
