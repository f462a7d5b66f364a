"""A model's actors, as a frontend knows them: which its requests need, and whether they are there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from pageant.actors.frontend.metering import Metering
from pageant.actors.frontend.places import RUNNING_CAST, Place, find_lost, is_spoken_for
from pageant.actors.runtime.address import EVERY_REPLICA, replica_of, role_of
from pageant.protocol.adapters import ADAPTER_OWNERS, ADAPTERS
from pageant.protocol.errors import GivenUp
from pageant.protocol.fronting import ServedModel
from pageant.protocol.lifecycle import ASLEEP, PAUSED, WEIGHT_VERSION, ModelState
from pageant.protocol.roles import ROUTER
from pageant.protocol.supervision import REMOVED, ActorChanged, ActorDown, ActorUp

CAST = ("tokenizer", *RUNNING_CAST)


class Sampler(Protocol):
    """Source of randomness, such as an actor's own."""

    def sample(self, population: Sequence[Place], k: int) -> list[Place]:
        """Return `k` different ones."""


class Peers:
    """The actors of a model that are up, with their features; and the counters of its requests.

    A model has one place where requests are computed, or one for each of its replicas. Tokenizers serve all of them.
    Requests look at these facts one by one, so that answers are made when actors come and go.
    """

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.metering = Metering()
        self.adapters = {name: name for name in model.adapters}
        """The keys of the model's adapters, by their names."""
        self.adapter_owners: dict[str, str] = {}
        self.is_asleep = False
        self.is_loading = False
        """The lifecycle actor was asked to load the model, and has not answered."""
        self.weight_version = ""
        """The version of the weights that the model computes with."""
        self.places: dict[str, Place] = {}
        """Where requests are computed, by prefix."""
        if not model.is_replicated:
            self.places[model.replica] = Place(model.replica)
        # Tokenizers that are up, with their features; and all that were heard of, with why they are gone for good.
        self._tokenizers: dict[str, tuple[str, ...]] = {}
        self._known_tokenizers: dict[str, str | None] = {}
        self._changed = asyncio.Event()

    def address(self, role: str) -> str:
        """Return the address of an actor of this model, or of a group; of one that replicas own, of any of them."""
        if role in ("tokenizer", "encoder"):
            return self.model.replica + role
        open_first = sorted(self.places.values(), key=lambda place: not place.is_open)
        return open_first[0].address(role) if open_first else self.model.replica + role

    def watched(self) -> Iterator[str]:
        """Yield the addresses of the actors that requests need."""
        for role in CAST:
            every = EVERY_REPLICA if self.model.is_replicated and role != "tokenizer" else ""
            yield self.model.replica + every + role
        if self.model.is_replicated:
            yield ROUTER.name

    # Places.

    def place_of(self, name: str) -> Place | None:
        """Return the place of an actor, or None if its replica is gone."""
        return self.places.get(replica_of(name))

    def choose(self, random: Sampler) -> Place | None:
        """Return the less laden of two places that take requests; None where there is none.

        Places that are only for prompts are taken where there are no others.
        """
        found = [place for place in self.places.values() if place.is_open]
        found = [place for place in found if not place.only_prefills] or found
        if len(found) > 2:
            found = random.sample(found, 2)
        return min(found, key=lambda place: place.num_tokens, default=None)

    @property
    def complete(self) -> bool:
        """Tell whether a request can be prepared and computed: every role has an actor that is up."""
        return bool(self._tokenizers) and any(place.is_ready for place in self.places.values())

    @property
    def lost(self) -> str | None:
        """Return why no request will be served any more; None while some may be."""
        return find_lost(("tokenizer",), self._known_tokenizers) or self.lost_running

    @property
    def lost_running(self) -> str | None:
        """Return why no submitted request will be computed any more; None while some may be."""
        reasons = [place.lost for place in self.places.values()]
        return reasons[-1] if reasons and all(reasons) else None

    async def wait(self) -> None:
        """Returns when they are complete.

        Raises:
            GivenUp: one of them will not come back.
        """
        while True:
            if (lost := self.lost) is not None:
                raise GivenUp(lost)
            if self.complete:
                return
            await self.wait_for_change()

    async def wait_for_change(self) -> None:
        """Return when an actor has come or gone."""
        self._changed.clear()
        await self._changed.wait()

    # What the actors say of themselves.

    @property
    def is_at_rest(self) -> bool:
        """Tell whether the model's step loop is stopped on purpose."""
        return self.is_asleep or self.is_paused

    @property
    def is_paused(self) -> bool:
        """Tell whether the model is paused everywhere, so that its step loops bring nothing."""
        paused = [place.facts.get("scheduler", {}).get(PAUSED) for place in self.places.values()]
        return bool(paused) and all(paused)

    def role(self, role: str) -> list[tuple[str, ...]]:
        """The features of every actor of a role that is up."""
        if role == "tokenizer":
            return [*self._tokenizers.values()]
        return [features for place in self.places.values() for features in place.features(role)]

    def came(self, event: ActorUp) -> None:
        """Take note of a peer that is up. Of a group of executors, the first speaks for all."""
        name = event.address
        if role_of(name) == "tokenizer":
            self._tokenizers[name], self._known_tokenizers[name] = event.features, None
        elif not is_spoken_for(name):
            place = self.places.setdefault(replica_of(name), Place(replica_of(name)))
            place.came(event)
            self._take_facts(event)
        self._changed.set()

    def changed(self, event: ActorUp | ActorChanged) -> None:
        """Take over the facts of one that is up."""
        place = self.place_of(event.address)
        if place is not None and role_of(event.address) != "tokenizer" and not is_spoken_for(event.address):
            place.changed(event)
            self._take_facts(event)

    def _take_facts(self, event: ActorUp | ActorChanged) -> None:
        self._limit()
        keys, owners = event.facts.get(ADAPTERS), event.facts.get(ADAPTER_OWNERS)
        if isinstance(keys, dict) and isinstance(owners, dict):
            self.adapters, self.adapter_owners = keys, owners
        if role_of(event.address) == "executor":
            self.is_asleep = bool(event.facts.get(ASLEEP))
            self.weight_version = str(event.facts.get(WEIGHT_VERSION, ""))

    def _limit(self) -> None:
        """Bound requests by the place that holds the shortest."""
        known = [place.max_model_len for place in self.places.values() if place.max_model_len is not None]
        if known:
            self.model = msgspec.structs.replace(self.model, max_model_len=min(known))

    def learn(self, state: ModelState) -> None:
        """Take over how the model is served, before actors' own facts come."""
        self.adapters, self.adapter_owners = state.adapters, state.adapter_owners
        self.is_asleep = state.sleep_level > 0
        self.weight_version = state.weight_version

    def went(self, event: ActorDown) -> None:
        """Take note of one that is down. A replica of which all actors were removed is no place any more."""
        name = event.address
        if role_of(name) == "tokenizer":
            self._tokenizers.pop(name, None)
            if event.reason == REMOVED:
                self._known_tokenizers.pop(name, None)
            elif event.final:
                self._known_tokenizers[name] = event.reason
        elif not is_spoken_for(name) and (place := self.place_of(name)) is not None:
            place.went(event)
            if place.is_gone and self.model.is_replicated:
                del self.places[place.prefix]
                self._limit()
        self._changed.set()
