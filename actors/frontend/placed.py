"""The frontend's part in moving requests between replicas."""

from __future__ import annotations

from pageant.actors.frontend.moving import Moving
from pageant.actors.frontend.peers import Peers
from pageant.actors.frontend.places import Place
from pageant.actors.runtime import Actor, receives
from pageant.actors.runtime.address import model_of, replica_of
from pageant.protocol.errors import BadRequest
from pageant.protocol.replicas import GetPlaceUse, Moved, MoveRequests, PlaceUse, RequestsMoved


class PlacedFrontend(Actor):
    """Base of frontends, which knows where their requests are computed."""

    _moving: Moving
    _peers: dict[str, Peers]

    def _peers_of(self, name: str) -> Peers:
        """Return the peers that an actor of this full name is one of."""
        return self._peers[model_of(replica_of(name))]

    @receives
    def moved(self, message: Moved) -> None:
        """A scheduler has ended requests that go on at another replica."""
        peers = self._peers_of(self.sender)
        self._moving.moved(peers, peers.place_of(self.sender), message)

    @receives
    def place_use(self, request: GetPlaceUse) -> PlaceUse:
        """Return the number of open sequences at a replica."""
        return PlaceUse(num_open=self._moving.num_at(request.prefix))

    @receives
    def move_requests(self, request: MoveRequests) -> RequestsMoved:
        """Move open sequences from one replica to another.

        Raises:
            BadRequest: there is no such replica, or the target takes no requests.
        """
        peers, source = self._place("source", request.source)
        _, target = self._place("target", request.target)
        if model_of(request.source) != model_of(request.target):
            raise BadRequest(
                f"target is {request.target!r}, of another model than {request.source!r}", "target"
            )
        if target is source or not target.is_open or target.only_prefills:
            raise BadRequest(
                f"target is {request.target!r}; expected another replica, which takes requests and goes on with "
                "outputs",
                "target",
            )
        if request.num_tokens < 0:
            raise BadRequest(f"num_tokens is {request.num_tokens}; expected at least 0", "num_tokens")
        return self._moving.move_some(peers, source, target, request.num_tokens)

    def _place(self, parameter: str, prefix: str) -> tuple[Peers, Place]:
        peers = self._peers.get(model_of(prefix))
        place = None if peers is None else peers.places.get(prefix)
        if peers is None or place is None or not peers.model.is_replicated:
            replicated = (one for one in self._peers.values() if one.model.is_replicated)
            known = ", ".join(repr(name) for one in replicated for name in one.places) or "none"
            raise BadRequest(
                f"{parameter} is {prefix!r}; expected a replica, of which there are {known}", parameter
            )
        return peers, place
