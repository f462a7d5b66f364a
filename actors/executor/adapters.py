"""The adapters of an executor: which there are, and how they come and go while steps are computed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pageant.actors.executor.batch.batch import Batch
from pageant.actors.executor.steps import Step
from pageant.actors.runtime import Actor, receives
from pageant.models.errors import CheckpointError
from pageant.protocol.adapters import (
    ADAPTER_OWNERS,
    ADAPTERS,
    AdapterLoaded,
    AdapterUnloaded,
    AddedAdapter,
    LoadAdapter,
    UnloadAdapter,
    adapter_owners,
    offered_adapters,
)
from pageant.protocol.errors import BadRequest
from pageant.protocol.supervision import Facts

if TYPE_CHECKING:
    from pageant.actors.executor.runners.model_runner import ModelRunner

log = logging.getLogger("pageant.executor")


class AdapterBook:
    """Follows adapters that come and go while steps are computed.

    Args:
        batch: told which adapters sequences may have.
        configured: the names of those that the topology has, which are their keys too.
    """

    def __init__(self, batch: Batch, configured: Iterable[str]) -> None:
        self._batch = batch
        self._adapters = {name: AddedAdapter(name=name, folder="") for name in configured}
        self._leaving: dict[str, list[Step]] = {}
        """By key, the steps at hand when an adapter was unloaded: they may be computed with it."""

    def __contains__(self, key: str) -> bool:
        return key in self._adapters

    def facts(self) -> Facts:
        """Return what frontends are to know: keys and owners, by name."""
        return {
            ADAPTERS: offered_adapters((), self._adapters),
            ADAPTER_OWNERS: adapter_owners(self._adapters),
        }

    def add(self, key: str, adapter: AddedAdapter) -> None:
        """One is loaded."""
        self._adapters[key] = adapter
        self._batch.add_adapter(key)

    def retire(self, key: str) -> None:
        """No new request gets it."""
        one = self._adapters.get(key)
        if one is not None:
            self._adapters[key] = AddedAdapter(
                name=one.name, folder=one.folder, owner=one.owner, retired=True
            )

    def remove(self, key: str, at_hand: Iterable[Step]) -> None:
        """No step that is packed from now on has it.

        Args:
            at_hand: the steps that were packed, and are not answered.
        """
        one = self._adapters.pop(key, None)
        if one is not None:
            self._batch.remove_adapter(key, f"the adapter {one.name!r} was unloaded")
            self._leaving[key] = list(at_hand)

    @property
    def some_leave(self) -> bool:
        """Tell whether adapters were unloaded that steps may still have."""
        return bool(self._leaving)

    def take_forgotten(self, at_hand: Collection[Step]) -> list[str]:
        """Return the keys of adapters that no step has any more, each once."""
        if not self._leaving:
            return []
        gone = [key for key, steps in self._leaving.items() if not any(step in at_hand for step in steps)]
        for key in gone:
            del self._leaving[key]
        return gone


class Adapting(Actor):
    """The part of an executor that loads and unloads adapters while it computes."""

    _runner: ModelRunner

    @property
    def _adapters(self) -> AdapterBook:
        raise NotImplementedError

    async def _add_elsewhere(self, key: str, folder: str) -> None:
        """Have the other members of the group load their shares of an adapter."""
        raise NotImplementedError

    def _forget_elsewhere(self, key: str) -> None:
        """Have the other members of the group forget an adapter."""
        raise NotImplementedError

    def _unload_adapter(self, key: str) -> None:
        """Take an adapter away from all requests. Its weights are forgotten when no step has it."""
        raise NotImplementedError

    async def _load_added(self) -> None:
        """Load what was loaded while an earlier life served."""
        for key, adapter in self.options.added_adapters.items():
            try:
                await self._load_adapter(key, adapter)
            except BadRequest as error:
                log.error("the adapter %r is left out: %s", adapter.name, error)

    async def _load_adapter(self, key: str, adapter: AddedAdapter) -> None:
        try:
            await self.offload_beside("adapters", self._runner.add_adapter, key, adapter.folder)
            await self._add_elsewhere(key, adapter.folder)
        except CheckpointError as error:
            raise BadRequest(str(error), "folder") from None
        except BadRequest:
            self._forget_adapter(key)  # which a member could not load
            raise
        self._adapters.add(key, adapter)

    def _forget_adapter(self, key: str) -> None:
        """Forget the weights of an adapter that no step has, here and on the other members of the group."""
        self._runner.remove_adapter(key)
        self._forget_elsewhere(key)

    @receives(concurrent=True)
    async def load_adapter(self, request: LoadAdapter) -> AdapterLoaded:
        """Load an adapter, while steps are computed."""
        if request.key not in self._adapters:
            await self._load_adapter(request.key, request.adapter)
            self.announce()
        return AdapterLoaded()

    @receives
    def unload_adapter(self, request: UnloadAdapter) -> AdapterUnloaded:
        """Take an adapter away: from new requests, or from all. Its weights are forgotten when no step has it."""
        if request.retire:
            self._adapters.retire(request.key)
        else:
            self._unload_adapter(request.key)
        self.announce()
        return AdapterUnloaded()
