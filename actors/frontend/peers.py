"""A model's actors, as a frontend knows them: which its requests need, and whether they are there."""

from __future__ import annotations

import asyncio

import msgspec

from pageant.actors.frontend.metering import Metering
from pageant.actors.runtime.address import is_follower, role_of
from pageant.actors.runtime.streams import Incoming
from pageant.protocol.errors import GivenUp
from pageant.protocol.fronting import ServedModel
from pageant.protocol.lifecycle import ADAPTER_OWNERS, ADAPTERS, ASLEEP, PAUSED, WEIGHT_VERSION, ModelState
from pageant.protocol.stepping import MAX_MODEL_LEN
from pageant.protocol.supervision import ActorChanged, ActorDown, ActorUp, Facts

RUNNING_CAST = ("scheduler", "blocks", "executor", "detokenizer")  # of a request that is submitted
CAST = ("tokenizer", *RUNNING_CAST)


class Peers:
    """The actors of a model that are up, with their features; and the counters of its requests.

    They are asked for each request, so that answers are made when actors come and go.
    """

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.incoming = Incoming("outputs")
        self.detokenizer = 0  # its latest incarnation
        self.metering = Metering()
        self.adapters = {name: name for name in model.adapters}
        """The keys of the model's adapters, by their names."""
        self.adapter_owners: dict[str, str] = {}
        self.is_asleep = False
        self.is_loading = False
        """The lifecycle actor was asked to load the model, and has not answered."""
        self.weight_version = ""
        """The version of the weights that the model computes with."""
        self._up: dict[str, tuple[str, ...]] = {}
        self._known: dict[str, str | None] = {}  # whoever was up; why it is gone for good
        self._features: dict[str, list[tuple[str, ...]]] = {}  # by role, of each actor that is up
        self._facts: dict[str, Facts] = {}  # by role, of the one that changed last
        # Says of a role whose actors are all gone for good that it is; of any role, and of those in RUNNING_CAST.
        self.lost: str | None = None
        self.lost_running: str | None = None
        self._changed = asyncio.Event()

    def address(self, role: str) -> str:
        """Return the address of an actor, or of a group."""
        return self.model.replica + role

    @property
    def complete(self) -> bool:
        """Tell whether every role has an actor that is up."""
        return self._features.keys() >= set(CAST)

    async def wait(self) -> None:
        """Returns when they are complete.

        Raises:
            GivenUp: one of them will not come back.
        """
        while True:
            if self.lost is not None:
                raise GivenUp(self.lost)
            if self.complete:
                return
            self._changed.clear()
            await self._changed.wait()

    @property
    def is_at_rest(self) -> bool:
        """Tell whether the model's step loop is stopped on purpose."""
        return self.is_asleep or self.is_paused

    @property
    def is_paused(self) -> bool:
        """Tell whether the model is paused, so that its step loop brings nothing."""
        return bool(self._facts.get("scheduler", {}).get(PAUSED))

    def role(self, role: str) -> list[tuple[str, ...]]:
        """The features of every actor of a role that is up."""
        return self._features.get(role, [])

    def came(self, event: ActorUp) -> None:
        """Take note of a peer that is up. Of a group of executors, the first speaks for all."""
        if _is_spoken_for(event.address):
            return
        self._up[event.address], self._known[event.address] = event.features, None
        self.changed(event)
        if role_of(event.address) == "detokenizer":
            self.detokenizer = event.incarnation
        self._learn()

    def changed(self, event: ActorUp | ActorChanged) -> None:
        """Take over the facts of one that is up."""
        if _is_spoken_for(event.address):
            return
        self._facts[role_of(event.address)] = event.facts
        longest = event.facts.get(MAX_MODEL_LEN)
        if isinstance(longest, int):
            self.model = msgspec.structs.replace(self.model, max_model_len=longest)
        keys, owners = event.facts.get(ADAPTERS), event.facts.get(ADAPTER_OWNERS)
        if isinstance(keys, dict) and isinstance(owners, dict):
            self.adapters, self.adapter_owners = keys, owners
        if role_of(event.address) == "executor":
            self.is_asleep = bool(event.facts.get(ASLEEP))
            self.weight_version = str(event.facts.get(WEIGHT_VERSION, ""))

    def learn(self, state: ModelState) -> None:
        """Take over how the model is served, before actors' own facts come."""
        self.adapters, self.adapter_owners = state.adapters, state.adapter_owners
        self.is_asleep = state.sleep_level > 0
        self.weight_version = state.weight_version

    def went(self, event: ActorDown) -> None:
        """One is down."""
        if _is_spoken_for(event.address):
            return
        self._up.pop(event.address, None)
        if event.final:
            self._known[event.address] = event.reason
        self._learn()

    def _learn(self) -> None:
        self._features = {}
        for name, features in self._up.items():
            self._features.setdefault(role_of(name), []).append(features)
        self.lost, self.lost_running = self._find_lost(CAST), self._find_lost(RUNNING_CAST)
        self._changed.set()

    def _find_lost(self, cast: tuple[str, ...]) -> str | None:
        for role in cast:
            reasons = {name: why for name, why in self._known.items() if role_of(name) == role}
            if reasons and None not in reasons.values():
                name, why = next(reversed(reasons.items()))
                return f"{name} is down and will not be restarted: {why}"
        return None


def _is_spoken_for(address: str) -> bool:
    return role_of(address) == "executor" and is_follower(address)
