"""Submission of open requests at a place, and their moves to another.

A request moves when its replica lacks an actor, or is drained, while another replica takes requests; and when it is
asked to (`MoveRequests`), for instance by a router to which its replica has too much to do. Its old
scheduler ends it (`Move`), and it is submitted elsewhere with its output so far, under a new wire id: what the old
place still says of it is about a request that nobody knows. One that the old scheduler does not know has ended there,
and its end is on the way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from pageant.actors.frontend.advice import NO_ADVICE, Advice, advised_submits
from pageant.actors.frontend.peers import Peers
from pageant.actors.frontend.places import Place
from pageant.actors.frontend.requests import OpenRequest, OpenSequence
from pageant.actors.runtime import Actor
from pageant.actors.runtime.address import role_of
from pageant.protocol.replicas import MOVING, Move, Moved, RequestsMoved
from pageant.protocol.roles import ROUTER
from pageant.protocol.serving import Abort, Submit
from pageant.protocol.supervision import SWAPPED, ActorChanged, ActorDown, ActorUp

KEEPERS = ("scheduler", "detokenizer")
"""Roles of which a new life knows nothing that the former held for a request."""
SEQUENCE_TOKENS = 64
"""Tokens that an open sequence counts for beside those that are known."""
DRAINED_AT_ONCE = 8
"""The most sequences that move from a drained place at a time. Where they go on, a step that takes up all of a place's
sequences would hold up every stream for the sum of their copies and last tokens."""


class Moving:
    """Submits the sequences of a frontend's requests, and moves them.

    Args:
        frontend: the actor that owns the requests.
        sequences: its open sequences by wire id; a moved one gets another id there.
        new_id: returns a wire id that no sequence has had.
    """

    def __init__(
        self, frontend: Actor, sequences: dict[str, OpenSequence], new_id: Callable[[], str]
    ) -> None:
        self._frontend, self._sequences, self._new_id = frontend, sequences, new_id
        self._advice: dict[str, Advice] = {}
        self._has_router = False
        self.num_moved = 0
        """Sequences that were submitted at another place than before."""
        self.num_handed_over = 0
        """Those of them whose prompts another replica had computed for that."""

    # Submissions.

    async def submit(self, request: OpenRequest, submits: list[Submit]) -> None:
        """Submit the samples of a request for the first time, all at one place, or once there is one.

        A model's only place is taken at once. Where there are several, the router is asked first.
        """
        peers, advised = request.peers, NO_ADVICE
        if peers.model.is_replicated:
            advised = await self._advice_on(peers).ask(submits[0])
            submits = advised_submits(submits, advised)
        via = peers.places.get(advised.via) if advised.via else None
        is_handed_over = via is not None and via.is_open
        place = via if is_handed_over else peers.places.get(advised.place)
        if place is None or not place.is_open or not peers.model.is_replicated:
            place = self._choose(peers)
        for submit in submits:
            sequence = self._sequences.get(submit.request_id)
            if sequence is not None:  # it was not aborted meanwhile
                if is_handed_over:
                    sequence.next_place = advised.place
                    submit = msgspec.structs.replace(submit, handover=True)
                sequence.begin(submit, self._frontend.clock.now())
                self._submit(submit.request_id, sequence, place)

    def _advice_on(self, peers: Peers) -> Advice:
        model = peers.model.replica
        if model not in self._advice:
            self._advice[model] = Advice(self._frontend, model, lambda: self._has_router)
        return self._advice[model]

    def is_router(self, event: ActorUp | ActorChanged | ActorDown) -> bool:
        """Tell whether an event is the router's, and take note of whether it is up."""
        if event.address == ROUTER.name:
            self._has_router = not isinstance(event, ActorDown)
        return event.address == ROUTER.name

    def _choose(self, peers: Peers) -> Place | None:
        if not peers.model.is_replicated:
            return next(iter(peers.places.values()))
        return peers.choose(self._frontend.random)

    def _submit(self, name: str, sequence: OpenSequence, place: Place | None) -> None:
        """Submit a sequence at a place; None leaves it to wait for one."""
        self.leave(sequence)
        sequence.is_moving, sequence.place = False, place
        if place is None:
            return
        sequence.num_charged = sequence.num_tokens + SEQUENCE_TOKENS
        place.num_tokens += sequence.num_charged
        scheduler = sequence.request.scheduler = place.address("scheduler")
        now = self._frontend.clock.now()
        submit = sequence.again(now, place.detokenizer, name) if sequence.was_sent else sequence.first(now)
        self._frontend.tell(scheduler, submit)

    def again(self, place: Place) -> None:
        """Submit the sequences of a place once more: a new actor there may not know them."""
        now = self._frontend.clock.now()
        for name, sequence in self._sequences.items():
            if sequence.place is place and sequence.is_submitted and not sequence.is_moving:
                self._frontend.tell(place.address("scheduler"), sequence.again(now, place.detokenizer, name))

    @staticmethod
    def leave(sequence: OpenSequence) -> None:
        """Take a sequence out of its place's count."""
        if sequence.place is not None:
            sequence.place.num_tokens -= sequence.num_charged
        sequence.num_charged = 0

    def num_at(self, prefix: str) -> int:
        """Return the number of sequences at a place."""
        return sum(one.place is not None and one.place.prefix == prefix for one in self._sequences.values())

    # Moves.

    def came_up(self, peers: Peers, event: ActorUp) -> None:
        """Use an actor that is up. One that keeps something of requests knows none of them, and is told."""
        place = peers.place_of(event.address)
        if place is not None and role_of(event.address) in KEEPERS:
            self.again(place)
        self.came(peers)

    def came(self, peers: Peers) -> None:
        """Use a place that may take requests now, for those that wait for one or whose place lacks an actor."""
        if not peers.model.is_replicated or not any(place.is_open for place in peers.places.values()):
            return
        for name, sequence in list(self._of(peers, None).items()):
            self._submit(name, sequence, self._choose(peers))
        for place in list(peers.places.values()):
            if not place.is_ready:
                self._move(peers, place)
            else:
                self._drain(peers, place)

    def went(self, peers: Peers, place: Place, event: ActorDown) -> None:
        """Move the requests of a place that has just lost an actor."""
        if not peers.model.is_replicated or place.is_ready:
            return
        if role_of(event.address) == "scheduler":
            moving = {name: one for name, one in self._of(peers, place).items() if one.is_moving}
            self._resubmit(moving, peers)
        died = role_of(event.address) == "executor" and event.reason != SWAPPED
        self._move(peers, place, epoch=event.incarnation if died else 0)

    def _of(self, peers: Peers, place: Place | None) -> dict[str, OpenSequence]:
        return {
            name: one
            for name, one in self._sequences.items()
            if one.place is place and one.request.peers is peers and one.is_submitted
        }

    def _move(self, peers: Peers, place: Place, epoch: int = 0) -> None:
        """Move the requests of a place, if another takes any.

        Args:
            epoch: the incarnation of the executor whose death is the cause; 0 for another cause.
        """
        staying = {name: one for name, one in self._of(peers, place).items() if not one.is_moving}
        if staying and self._has_elsewhere(peers, place):
            self._end_there(peers, place, staying, epoch)

    def _drain(self, peers: Peers, place: Place, unknown: Collection[str] = ()) -> None:
        """Move some requests of a place that is drained; the others follow when it has ended these.

        Args:
            unknown: sequences that have ended there, as the place has just said. Their ends are on the way.
        """
        if place.draining < MOVING or not place.is_ready or not self._has_elsewhere(peers, place):
            return
        here = self._of(peers, place)
        staying = {name: one for name, one in here.items() if not one.is_moving and name not in unknown}
        if place.answers_moves:
            room = DRAINED_AT_ONCE - sum(one.is_moving for one in here.values())
            staying = dict(itertools.islice(staying.items(), max(0, room)))
        if staying:
            self._end_there(peers, place, staying)

    @staticmethod
    def _has_elsewhere(peers: Peers, place: Place) -> bool:
        """Tell whether requests of a place have where to go, or no place to stay."""
        is_gone = peers.places.get(place.prefix) is not place
        return is_gone or any(other is not place and other.is_open for other in peers.places.values())

    def _end_there(
        self, peers: Peers, place: Place, sequences: Mapping[str, OpenSequence], epoch: int = 0
    ) -> None:
        """End sequences at a place, so that they go on at another."""
        scheduler, frontend = place.address("scheduler"), self._frontend.name
        if place.answers_moves:
            for sequence in sequences.values():
                sequence.is_moving = True
            move = Move(frontend=frontend, request_ids=tuple(sequences), epoch=epoch)
            self._frontend.tell(scheduler, move)
            return
        if place.features("scheduler"):
            self._frontend.tell(scheduler, Abort(frontend=frontend, request_ids=tuple(sequences)))
        self._resubmit(sequences, peers)

    def move_some(self, peers: Peers, source: Place, target: Place, num_tokens: int) -> RequestsMoved:
        """Move the latest sequences of a place to another, as many as have at most `num_tokens` tokens."""
        moving: dict[str, OpenSequence] = {}
        left = num_tokens
        for name, sequence in reversed(self._of(peers, source).items()):
            if sequence.is_moving or sequence.next_place or sequence.num_tokens > left:
                continue
            left -= sequence.num_tokens
            sequence.next_place = target.prefix
            moving[name] = sequence
        if moving:
            self._end_there(peers, source, moving)
        return RequestsMoved(num_sequences=len(moving), num_tokens=num_tokens - left)

    def moved(self, peers: Peers, place: Place | None, message: Moved) -> None:
        """Submit elsewhere the requests that a scheduler has ended for that."""
        ended: dict[str, OpenSequence] = {}
        columns = zip(message.request_ids, message.deaths.tolist(), message.died_at.tolist(), strict=True)
        for name, deaths, died_at in columns:
            sequence = self._sequences.get(name)
            if sequence is not None and sequence.is_moving and sequence.place is place:
                sequence.deaths, sequence.died_at = deaths, died_at
                ended[name] = sequence
        for name in message.unknown:
            if (sequence := self._sequences.get(name)) is not None:
                sequence.is_moving = False
                if sequence.submit is not None and not sequence.submit.handover:
                    sequence.next_place = ""
        self._resubmit(ended, peers)
        if place is not None:
            self._drain(peers, place, message.unknown)

    def handed_over(self, names: Iterable[str], peers: Peers) -> None:
        """Submit sequences where they go on, with their first tokens: another replica has computed their prompts."""
        found = {name: self._sequences[name] for name in names if name in self._sequences}
        self.num_handed_over += len(found)
        self._resubmit(found, peers)

    def _resubmit(self, sequences: Mapping[str, OpenSequence], peers: Peers) -> None:
        """Submit sequences elsewhere, each under a new wire id."""
        for old, sequence in sequences.items():
            del self._sequences[old]
            name = self._new_id()
            self._sequences[name] = sequence
            sequence.request.wire_ids[sequence.sample] = name
            self.num_moved += 1
            place = peers.places.get(sequence.next_place)
            sequence.next_place = ""
            if sequence.submit is not None and sequence.submit.handover:
                sequence.submit = msgspec.structs.replace(sequence.submit, handover=False)
            self._submit(
                name, sequence, place if place is not None and place.is_open else self._choose(peers)
            )
