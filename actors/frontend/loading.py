"""Loading of models on demand: a request to a model that sleeps has it loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pageant.actors.frontend.peers import Peers
from pageant.actors.frontend.requests import OpenRequest
from pageant.actors.runtime import Actor
from pageant.protocol.errors import NotLoaded, PageantError
from pageant.protocol.lifecycle import DRAIN_SECONDS, LoadModel

__all__ = ["LIFECYCLE", "LoadingOnDemand"]

LIFECYCLE = "lifecycle"


class LoadingOnDemand:
    """Has models loaded that requests wait for.

    Args:
        frontend: the actor that asks.
        requests: its open requests, by name.
        fail: ends one of them with an error.
        enabled: models are loaded on demand at all.
    """

    def __init__(
        self,
        frontend: Actor,
        requests: Mapping[str, OpenRequest],
        fail: Callable[[OpenRequest, PageantError], None],
        *,
        enabled: bool,
    ) -> None:
        self._enabled = enabled
        self._frontend, self._requests, self._fail = frontend, requests, fail

    def load_if_wanted(self, peers: Peers) -> None:
        """Have a model loaded that sleeps, where a request that was submitted waits for it."""
        if self._enabled and peers.is_asleep and not peers.is_loading and self._waiting(peers):
            peers.is_loading = True
            self._frontend.spawn(self._load(peers))

    def _waiting(self, peers: Peers) -> list[OpenRequest]:
        return [one for one in self._requests.values() if one.submitted and one.peers is peers]

    async def _load(self, peers: Peers) -> None:
        """Have a model loaded. Its requests end with the error, if it cannot be."""
        order = LoadModel(replica=peers.model.replica)
        try:
            await self._frontend.ask(LIFECYCLE, order, timeout=DRAIN_SECONDS, again=True)
        except PageantError as error:
            for request in self._waiting(peers):
                name, why = peers.model.name, getattr(error, "detail", str(error))
                self._fail(request, NotLoaded(f"the model {name!r} cannot be loaded: {why}", name))
        finally:
            peers.is_loading = False
        self.load_if_wanted(peers)
