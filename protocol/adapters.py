"""Low-rank adapters of executors: which there are, and messages that load and unload them.

    lifecycle ──LoadAdapter, UnloadAdapter──▶ executor
    lifecycle ──GetAdapterUse──▶ scheduler

Executors know adapters by keys. An adapter that takes another's name gets another key, so that no request is computed
with both and neither finds cached prefixes of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from pageant.protocol.message import Message, Request

ADAPTERS = "adapters"
"""The name of an executor's fact: the keys of the adapters that requests may have, by their names."""
ADAPTER_OWNERS = "adapter_owners"
"""The name of an executor's fact: the tenants that own adapters, by the adapters' names."""


class AddedAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An adapter that was loaded while its model was served.

    Attributes:
        name: its name for clients.
        folder: see `AdapterCheckpoint`; on the executor's host.
        owner: the tenant that made it; "" is the operator.
        retired: another adapter took its name: only requests that have begun with it still use it.
    """

    name: str
    folder: str
    owner: str = ""
    retired: bool = False


def offered_adapters(configured: Iterable[str], added: Mapping[str, AddedAdapter]) -> dict[str, str]:
    """Return the keys of the adapters that new requests may name, by the adapters' names.

    Args:
        configured: names of the topology's own adapters, which are their keys too.
        added: adapters that were loaded later, by key.
    """
    later = {one.name: key for key, one in added.items() if not one.retired}
    return {name: name for name in configured} | later


def adapter_owners(added: Mapping[str, AddedAdapter]) -> dict[str, str]:
    """Return the tenants that own adapters, by the adapters' names."""
    return {one.name: one.owner for one in added.values() if one.owner and not one.retired}


class AdapterLoaded(Message, frozen=True, kw_only=True):
    """An adapter was loaded: requests may use it."""


class LoadAdapter(Request[AdapterLoaded], frozen=True, kw_only=True):
    """Ask an executor to load an adapter under a key; one that it has stays as it is."""

    key: str
    adapter: AddedAdapter


class AdapterUnloaded(Message, frozen=True, kw_only=True):
    """An adapter was unloaded: no request uses it any more."""


class UnloadAdapter(Request[AdapterUnloaded], frozen=True, kw_only=True):
    """Ask an executor to unload an adapter. Requests that use it end with an error.

    Attributes:
        retire: only take away its name, and let requests that use it go on.
    """

    key: str
    retire: bool = False


class AdapterUse(Message, frozen=True, kw_only=True):
    """The number of open requests that use an adapter."""

    num_open: int


class GetAdapterUse(Request[AdapterUse], frozen=True, kw_only=True):
    """Ask a scheduler how many of its requests use the adapter of this key."""

    key: str
