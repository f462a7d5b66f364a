"""The frontend actor: carries a user's requests into the topology, and their outputs out of it.

It lives on the root node. The user's side hands it requests by `open`, on this node's loop. Outputs go to each
request's sink. Each sink's hub is told once per step, so that a user's own loop wakes up once per step and not
once per token. It may talk to the actors of several models, each request to one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from typing import Any

from pageant.actors.frontend.describing import describe
from pageant.actors.frontend.loading import LoadingOnDemand
from pageant.actors.frontend.moving import Moving
from pageant.actors.frontend.options import FrontendOptions
from pageant.actors.frontend.outputs import Arrived, RequestFailed
from pageant.actors.frontend.peers import Peers
from pageant.actors.frontend.placed import PlacedFrontend
from pageant.actors.frontend.places import Place
from pageant.actors.frontend.preparing import Preparation
from pageant.actors.frontend.requests import Hub, Opening, OpenRequest, OpenSequence
from pageant.actors.frontend.submitting import submits
from pageant.actors.frontend.tracing import Tracing, log_end
from pageant.actors.runtime import receives
from pageant.actors.runtime.streams import Arrival
from pageant.actors.runtime.tracing import CURRENT
from pageant.protocol.errors import (
    Asleep,
    BadRequest,
    GivenUp,
    Overloaded,
    PageantError,
    PeerGone,
    RequestExpired,
)
from pageant.protocol.fronting import ServedModel
from pageant.protocol.lifecycle import LearnModel, ModelLearned
from pageant.protocol.logprobs import split_rows
from pageant.protocol.roles import FRONTEND
from pageant.protocol.sampling import SEED_MAX
from pageant.protocol.serving import Abort, Finished, OutputBatch
from pageant.protocol.statistics import FrontendStatistics, GetFrontendStatistics
from pageant.protocol.supervision import ActorChanged, ActorDown, ActorUp

OPEN_MAX = 16_384  # sequences at a time; the scheduler's mailbox holds them all, with their aborts

log = logging.getLogger("pageant.frontend")


class Frontend(PlacedFrontend):
    """Speaks for the users in this process."""

    role = FRONTEND

    class Options(FrontendOptions, frozen=True, kw_only=True):
        """See `FrontendOptions`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        # By wire id: a user may reuse a name, and late news is not its.
        self._open: dict[str, OpenSequence] = {}
        self._requests: dict[str, OpenRequest] = {}  # by the user's own names
        self._numbers = itertools.count(1)
        self._peers = {model.replica: Peers(model) for model in options.served}
        self._moving = Moving(self, self._open, self._new_id)
        self._preparing = {name: Preparation(self, peers) for name, peers in self._peers.items()}
        self._tracing: Tracing | None = None
        loads = options.max_loaded_models is not None
        self._loading = LoadingOnDemand(self, self._requests, self._fail, enabled=loads)

    async def on_start(self) -> None:
        if self.options.otlp_traces_endpoint is not None:
            self._tracing = Tracing(self.tracer, self.options.traces_sampled)
        for peers in self._peers.values():
            for address in peers.watched():
                self.watch(address)

    async def on_stop(self) -> None:
        self._fail_all(PeerGone("the engine was closed while this request was open"))

    def on_crash(self, error: BaseException) -> None:
        self._fail_all(
            PeerGone(f"{self.name} crashed while this request was open: {type(error).__name__}: {error}")
        )

    # From the user's side, on this node's loop.

    def open(self, opening: Opening) -> None:
        """Takes a request. Its outcome goes to its sink, whatever happens."""
        name = opening.request_id
        count = opening.params.num_sequences
        if name in self._requests or len(self._open) + count > OPEN_MAX:
            used = BadRequest(f"request_id {name!r} is in use", "request_id")
            full = Overloaded(
                f"{len(self._open)} sequences are open in this process, at most {OPEN_MAX}; try again later"
            )
            opening.sink.failed(used if name in self._requests else full)
            opening.sink.hub.flush()
            return
        wire_ids = [self._new_id() for _ in range(count)]
        trace = None
        if self._tracing is not None and not opening.is_probe:
            trace = self._tracing.begin(opening.settings.get("traceparent"))
        peers = self._peers[self.options.served[0].replica if opening.replica is None else opening.replica]
        request = OpenRequest(opening, peers, wire_ids, self.clock.now(), self.clock.wall(), trace=trace)
        self._requests[name] = request
        for sample, wire_id in enumerate(wire_ids):
            self._open[wire_id] = OpenSequence(request, sample)
        self.spawn(self._start(request))

    def _new_id(self) -> str:
        return f"{self.incarnation}.{next(self._numbers)}"

    def abort_all(self, request_ids: list[str]) -> None:
        """Ends requests, wherever they are. Their sinks hear no more of them."""
        requests = [self._requests[name] for name in request_ids if name in self._requests]
        for request in requests:
            if not request.opening.is_probe:
                request.peers.metering.aborted(len(request.wire_ids))
        self._abort(requests)

    def _abort(self, requests: list[OpenRequest]) -> None:
        submitted: defaultdict[str, list[str]] = defaultdict(list)
        for request in requests:
            for wire_id, place in self._forget(request).items():
                submitted[place.address("scheduler")].append(wire_id)
        for scheduler, wire_ids in submitted.items():
            self.tell(scheduler, Abort(frontend=self.name, request_ids=tuple(wire_ids)))

    def _forget(self, request: OpenRequest) -> dict[str, Place]:
        """Takes a request out of the books. Returns the places of those of its sequences that a scheduler has."""
        del self._requests[request.opening.request_id]
        if request.trace is not None and self._tracing is not None:
            self._tracing.ended(request.trace, request, self.clock.now())
        if not request.opening.is_probe:
            log_end(request, self.clock.now())
        places: dict[str, Place] = {}
        for wire_id in request.wire_ids:
            sequence = self._open.pop(wire_id, None)
            if sequence is not None and sequence.place is not None:
                self._moving.leave(sequence)
                places[wire_id] = sequence.place
        return places

    def lost(self, replica: str) -> str | None:
        """Return why a model's requests are not answered any more (an actor is down for good), or None."""
        return self._peers[replica].lost

    def places(self, replica: str) -> list[str]:
        """Return the prefixes of the places where a model's requests are computed."""
        return sorted(self._peers[replica].places)

    def adapters(self, replica: str) -> tuple[str, ...]:
        """The names of a model's adapters, as they are now."""
        return tuple(self._peers[replica].adapters)

    def wire_ids(self, request_id: str) -> list[str]:
        """Return the topology's names of the samples of an open request."""
        return self._requests[request_id].wire_ids

    async def ready_model(self, replica: str) -> ServedModel:
        """Return the model of `replica` (a prefix of addresses), as its executor found it, when all its actors are up.

        Raises:
            GivenUp: one of its actors will not come back.
        """
        peers = self._peers[replica]
        await peers.wait()
        return peers.model

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    async def _start(self, request: OpenRequest) -> None:
        opening, peers = request.opening, request.peers
        if peers.is_asleep and self.options.while_asleep == "refuse":
            self._fail(request, Asleep(f"the model {peers.model.name!r} sleeps, until somebody wakes it"))
            return
        if request.trace is not None:
            CURRENT.set(request.trace.context)  # of this request's own task
        try:
            async with asyncio.timeout(opening.settings.get("deadline")):
                prepared = await self._preparing[peers.model.replica].prepare(opening)
        except PageantError as error:
            self._fail(request, error)
            return
        except TimeoutError:
            self._fail(request, RequestExpired("the request's deadline passed before it could be submitted"))
            return
        except (TypeError, ValueError, OverflowError) as error:  # others' requests are no part of this
            log.exception("a request could not be prepared")
            self._fail(request, BadRequest(f"it cannot be sent: {error}"))
            return
        if self._requests.get(opening.request_id) is not request:
            return  # aborted meanwhile
        adapter = opening.settings.get("adapter")
        if adapter is not None and adapter not in peers.adapters:
            self._fail(request, BadRequest(f"the adapter {adapter!r:.300} was unloaded", "adapter"))
            return
        opening.sink.accepted(prepared.text, prepared.token_ids.tolist())
        request.submitted, request.submitted_at = True, self.clock.now()
        request.num_prompt_tokens = len(prepared.token_ids)
        found = submits(
            request,
            prepared,
            frontend=self.name,
            draw_seed=lambda: self.random.randint(0, SEED_MAX),
            now=self.clock.now(),
            detailed_traces=self.options.detailed_traces,
        )
        if not opening.is_probe:
            peers.metering.accepted(len(prepared.token_ids), found[0].params)
        await self._moving.submit(request, found)
        self._loading.load_if_wanted(peers)

    # From the topology.

    @receives
    def outputs(self, batch: OutputBatch) -> None:
        """Take one step's outputs."""
        peers = self._peers_of(self.sender)
        place = peers.place_of(self.sender)
        if place is None:
            return  # its replica was removed, and its requests are elsewhere
        incoming = place.incoming
        arrival = incoming.arrive(batch.number, self.sender_incarnation, batch.start)
        if arrival is Arrival.NEXT:
            self._spread(batch, peers)
        if (reply := incoming.reply(arrival)) is not None:
            self.tell(self.sender, reply)

    def _spread(self, batch: OutputBatch, peers: Peers) -> None:
        token_ids = batch.token_ids.tolist()
        logprobs, prompt_logprobs = split_rows(batch.logprobs), split_rows(batch.prompt_logprobs)
        text_starts, token_starts = batch.text_starts.tolist(), batch.token_starts.tolist()
        now = self.clock.now()
        position = 0
        hubs: dict[Hub, None] = {}
        moved: list[str] = []
        metering = peers.metering
        for index, versions in batch.weight_versions.items():
            if (changed := self._open.get(batch.request_ids[index])) is not None:
                changed.weight_versions = versions
        num_tokens = num_steady = 0  # most sequences get one, and had their last with the batch before
        for index, (wire_id, count) in enumerate(zip(batch.request_ids, batch.counts.tolist(), strict=True)):
            tokens = token_ids[position : position + count]
            position += count
            sequence = self._open.get(wire_id)
            if sequence is None:
                continue
            request, finished = sequence.request, batch.finished.get(index)
            if finished is not None and finished.cause == "moved":
                if not sequence.next_place:
                    continue  # it goes on elsewhere, as its scheduler was asked for
                if sequence.submit is not None and sequence.submit.handover:
                    sequence.prompt_end = finished
                moved.append(wire_id)
                finished = None
            if finished is not None:
                finished = sequence.whole(finished)
            if tokens and request.first_token_at is None:
                request.first_token_at = now
                if not request.opening.is_probe:
                    peers.metering.first_token.observe(now - request.arrived_at)
            arrived = sequence.take(
                Arrived(
                    *(sequence.sample, batch.texts[index], tokens, finished),
                    *(logprobs.get(index), prompt_logprobs.get(index), batch.token_texts),
                    request.metrics(finished) if finished is not None else None,
                    *(batch.token_bytes, batch.weight_versions.get(index, ())),
                ),
                text_starts[index],
                token_starts[index],
            )
            if arrived is None:
                self._fail(request, RequestFailed(f"a part of its output is missing after {wire_id}"))
                continue
            if fresh := len(arrived.token_ids):
                num_tokens += fresh
                if sequence.last_token_at == metering.stepped_at and fresh == 1:
                    num_steady += 1
                elif sequence.last_token_at:
                    metering.gap(now - sequence.last_token_at, fresh)
                sequence.last_token_at = now
            if arrived.is_news:
                request.opening.sink.output(arrived)
                hubs[request.opening.sink.hub] = None
            if finished is not None:
                self._sample_ended(wire_id, sequence, finished)
        for hub in hubs:
            hub.flush()
        if moved:
            self._moving.handed_over(moved, peers)
        metering.stepped(num_tokens, num_steady, now)

    def _sample_ended(self, wire_id: str, sequence: OpenSequence, finished: Finished) -> None:
        """A sample ended, and with the last the request; an error ends the others too."""
        request = sequence.request
        request.ended[sequence.sample] = finished
        if not request.opening.is_probe:
            request.peers.metering.finished(finished, self.clock.now() - request.arrived_at)
        del self._open[wire_id]
        self._moving.leave(sequence)
        # What ended it may be of a former life, and the scheduler be at it still.
        if sequence.resumed and sequence.place is not None:
            scheduler = sequence.place.address("scheduler")
            self.tell(scheduler, Abort(frontend=self.name, request_ids=(wire_id,)))
        if finished.reason == "error":
            request.error = finished.message or finished.cause or "failure"
            self._abort([request])
        elif not any(other in self._open for other in request.wire_ids):
            self._forget(request)
            if not request.opening.is_probe:
                longest = max(one.num_output_tokens for one in request.ended.values())
                request.peers.metering.longest.observe(longest)

    @receives
    def peer_up(self, event: ActorUp) -> None:
        if self._moving.is_router(event):
            return
        peers = self._peers_of(event.address)
        peers.came(event)
        self._loading.load_if_wanted(peers)
        self._moving.came_up(peers, event)

    @receives
    def peer_changed(self, event: ActorChanged) -> None:
        """An actor of a model says something else of itself than when it came up."""
        if self._moving.is_router(event):
            return
        peers = self._peers_of(event.address)
        peers.changed(event)
        self._moving.came(peers)

    @receives
    def learn(self, message: LearnModel) -> ModelLearned:
        """A model is served otherwise from now on."""
        peers = self._peers[message.state.replica]
        peers.learn(message.state)
        self._loading.load_if_wanted(peers)
        return ModelLearned()

    @receives
    def peer_down(self, event: ActorDown) -> None:
        """Open requests wait for its next life; without one, those that need it end with a clear error."""
        if self._moving.is_router(event):
            return
        peers = self._peers_of(event.address)
        place = peers.place_of(event.address)
        peers.went(event)
        if place is not None:
            self._moving.went(peers, place, event)
        if not event.final:
            return
        for request in [one for one in self._requests.values() if one.peers is peers]:
            lost = peers.lost_running if request.submitted else peers.lost
            if lost is not None:
                self._fail(request, GivenUp(lost))

    # Looking in.

    @receives
    def statistics(self, question: GetFrontendStatistics) -> FrontendStatistics:
        """Return the counters of a model, and its oldest open requests."""
        peers = self._peers[question.replica]
        requests = [request for request in self._requests.values() if request.peers is peers]
        counts = self.http_counts() if question.replica == self.options.served[0].replica else {}
        return describe(peers.metering, requests, self._open, self.clock.now(), question.open_max, counts)

    def http_counts(self) -> dict[str, dict[str, int]]:
        """Return the counters of an HTTP server, which a subclass has."""
        return {}

    # Ends.

    def _fail_all(self, error: PageantError) -> None:
        """Fail every request when this actor ends. The schedulers, which watch it, end them too."""
        for request in list(self._requests.values()):
            self._fail(request, error, aborts=False)

    def _fail(self, request: OpenRequest, error: PageantError, *, aborts: bool = True) -> None:
        if self._requests.get(request.opening.request_id) is not request:
            return
        request.error = f"{type(error).__name__}: {error}"
        if aborts:
            self._abort([request])
        else:
            self._forget(request)
        request.peers.metering.failed(error)
        request.opening.sink.failed(error)
        request.opening.sink.hub.flush()
