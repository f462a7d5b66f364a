"""Frontend of simulated engines with replicas."""

from __future__ import annotations

from pageant.actors.frontend.frontend import Frontend
from pageant.actors.frontend.peers import Peers
from pageant.actors.runtime.simulation import Violation
from pageant.protocol.serving import OutputBatch


class WatchedFrontend(Frontend):
    """Fails where it would take a sequence's tokens from another place than the one that computes it."""

    def _spread(self, batch: OutputBatch, peers: Peers) -> None:
        sender = peers.place_of(self.sender)
        for name, count in zip(batch.request_ids, batch.counts.tolist(), strict=True):
            sequence = self._open.get(name)
            if count and sequence is not None and sequence.place is not sender:
                place = None if sequence.place is None else sequence.place.prefix
                raise Violation(f"{name} is at {place}, and {self.sender} has tokens for it")
        super()._spread(batch, peers)
