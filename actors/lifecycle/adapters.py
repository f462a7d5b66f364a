"""Adapters that are loaded and unloaded while their model is served.

Each load gets a key of its own, by which requests, executor and prefix cache know it. A name leads to the key of the
latest load; one that another took the place of is retired, and forgotten when its last request has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from pageant.actors.lifecycle.control import EXECUTOR, SCHEDULER, ModelControl
from pageant.protocol.adapters import (
    AddedAdapter,
    GetAdapterUse,
    LoadAdapter,
    UnloadAdapter,
    adapter_owners,
    offered_adapters,
)
from pageant.protocol.errors import BadRequest, PageantError
from pageant.protocol.lifecycle import AddAdapter, RemoveAdapter

log = logging.getLogger("pageant.lifecycle")

LOAD_SECONDS = 600.0
IDLE_POLL_SECONDS = 0.5
IDLE_POLLS = 2  # in a row: a request that was resolved before may still be on its way


@dataclass(frozen=True)
class Loaded:
    """The adapters of an executor's next life: the topology's folders by name, and those that were added by key."""

    configured: dict[str, str]
    added: dict[str, AddedAdapter]
    serial: int = 0
    """How many were ever added: a key is never given twice, since cached prefixes may be named by it still."""

    @classmethod
    def of(cls, options: dict[str, Any]) -> Loaded:
        """Read the adapters from the executor's options."""
        added = msgspec.convert(options.get("added_adapters", {}), dict[str, AddedAdapter])
        return cls(dict(options.get("adapters", {})), added, options.get("adapter_serial", 0))

    @property
    def keys(self) -> dict[str, str]:
        """The keys of those that new requests may have, by name."""
        return offered_adapters(self.configured, self.added)

    @property
    def owners(self) -> dict[str, str]:
        """Return by name who made those adapters that belong to somebody."""
        return adapter_owners(self.added)

    def with_added(self, adapter: AddedAdapter) -> tuple[str, Loaded]:
        """Return the key of another, and all of them with it."""
        serial = self.serial + 1
        while (key := f"{adapter.name}#{serial}") in self.configured:
            serial += 1
        return key, replace(self, added={**self.added, key: adapter}, serial=serial)

    def without(self, key: str) -> Loaded:
        """Return the others."""
        configured = {name: folder for name, folder in self.configured.items() if name != key}
        added = {one: adapter for one, adapter in self.added.items() if one != key}
        return replace(self, configured=configured, added=added)

    def with_retired(self, key: str) -> Loaded:
        """Return all of them, one of which is out of the way of another of its name."""
        one = self.added.get(key) or AddedAdapter(name=key, folder=self.configured[key])
        retired = {key: msgspec.structs.replace(one, retired=True)}
        others = self.without(key)
        return replace(others, added={**retired, **others.added})


async def loaded(model: ModelControl) -> Loaded:
    """Return the adapters of a model."""
    return Loaded.of((await model.executor()).options)


async def add(model: ModelControl, request: AddAdapter, taken: Iterable[str]) -> str | None:
    """Load an adapter. Returns the key of the one whose place it took, if any.

    Args:
        taken: names that it may not have.

    Raises:
        BadRequest: the name is taken, or what is wrong with the adapter.
    """
    present = await loaded(model)
    former = present.keys.get(request.name)
    if request.name in taken:
        raise BadRequest(f"a model is called {request.name!r} already", "name")
    if former is not None and not request.in_place:
        raise BadRequest(
            f"an adapter is called {request.name!r} already; unload it, or load in place", "name"
        )
    if former is not None and request.owner and present.owners.get(request.name) != request.owner:
        raise BadRequest(f"the adapter {request.name!r} is another's", "name")
    adapter = AddedAdapter(name=request.name, folder=request.folder, owner=request.owner)
    key, changed = (present if former is None else present.with_retired(former)).with_added(adapter)
    await _amend(model, changed)
    try:
        await model.ask(EXECUTOR, LoadAdapter(key=key, adapter=adapter), LOAD_SECONDS)
    except PageantError:
        await _amend(model, replace(present, serial=changed.serial))
        raise
    if former is not None:
        await model.ask(EXECUTOR, UnloadAdapter(key=former, retire=True))
    return former


async def remove(model: ModelControl, request: RemoveAdapter) -> None:
    """Unload an adapter. Requests that have it end with an error.

    Raises:
        BadRequest: there is none of that name, or it is another's.
    """
    present = await loaded(model)
    key = present.keys.get(request.name)
    if key is None or (request.owner and present.owners.get(request.name) != request.owner):
        raise BadRequest(f"no adapter is called {request.name!r}", "name")
    await forget(model, key)


async def forget(model: ModelControl, key: str) -> None:
    """Have an executor forget an adapter, and its next lives not know of it."""
    await _amend(model, (await loaded(model)).without(key))
    await model.ask(EXECUTOR, UnloadAdapter(key=key))


async def forget_when_idle(model: ModelControl, key: str) -> None:
    """Forget a retired adapter as soon as no request has it."""
    try:
        idle = 0
        while idle < IDLE_POLLS:
            await asyncio.sleep(IDLE_POLL_SECONDS)
            use = await model.ask(SCHEDULER, GetAdapterUse(key=key))
            idle = 0 if use.num_open else idle + 1
        async with model.changing:
            if key in (await loaded(model)).added:
                await forget(model, key)
    except PageantError as error:  # an actor is gone for good: so is whoever would be computed with it
        log.warning("the adapter %r stays loaded: %s", key, error)


async def _amend(model: ModelControl, adapters: Loaded) -> None:
    added = {key: msgspec.to_builtins(one) for key, one in adapters.added.items()}
    await model.amend_executor(
        adapters=adapters.configured, added_adapters=added, adapter_serial=adapters.serial
    )
