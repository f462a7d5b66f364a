"""The frontend's part in moving requests between replicas."""

from __future__ import annotations

from pageant.actors.frontend.moving import Moving
from pageant.actors.frontend.peers import Peers
from pageant.actors.runtime import Actor, receives
from pageant.actors.runtime.address import model_of, replica_of
from pageant.protocol.replicas import GetPlaceUse, Moved, PlaceUse


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
