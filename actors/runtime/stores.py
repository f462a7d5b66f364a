"""KV stores of a topology: on which nodes they live, and which store each replica's actors use.

A store shares memory with the executors of its host. The block manager and the executors of a replica use the store
of the host that they compute on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from pageant.actors.runtime.address import replica_of, role_of
from pageant.actors.runtime.topology_specs import ActorSpec
from pageant.protocol.errors import TopologyError

STORE, EXECUTOR, BLOCKS = "store", "executor", "blocks"
Homes = Mapping[str, Sequence[str]]
"""The nodes of each actor's members, by the actor's full name."""


def spread(
    spec: ActorSpec, homes: Homes, nodes: Sequence[str], root: str, host_of: Callable[[str], str]
) -> tuple[str, ...]:
    """Return the nodes of a store that is on each host: one for each host with executors.

    A node without an executor is preferred, so that the store outlives executors; this process is one.
    """
    busy = {node for name, places in homes.items() if role_of(name) == EXECUTOR for node in places}
    found: dict[str, str] = {}
    for node in sorted(busy):
        host = host_of(node)
        free = [one for one in nodes if host_of(one) == host and one not in busy]
        found.setdefault(host, root if root in free else (free or [node])[0])
    return tuple(found.values()) or (root,)


def stores_in_use(
    cls: Any, options: bytes | None, homes: Homes, host_of: Callable[[str], str]
) -> StoresInUse:
    """Return which store each actor uses; none where the topology has no store.

    Args:
        cls, options: the class of the stores, and their options as JSON.
    """
    if options is None:
        return StoresInUse({}, host_of, 0)
    read = msgspec.json.decode(options, type=cls.Options)
    return StoresInUse(homes, host_of, getattr(read, "num_bytes", 0))


class StoresInUse:
    """The store that each actor uses.

    Args:
        store_bytes: memory of each store.
    """

    def __init__(self, homes: Homes, host_of: Callable[[str], str], store_bytes: int) -> None:
        self._homes, self._host_of, self._bytes = homes, host_of, store_bytes
        places = homes.get(STORE, ())
        names = [STORE] if len(places) == 1 else [f"{STORE}/{index}" for index in range(len(places))]
        self._by_host: dict[str, str] = {}
        for name, node in zip(names, places, strict=True):
            other = self._by_host.setdefault(host_of(node), name)
            if other != name:
                raise TopologyError(
                    f"actors.{STORE}",
                    f"found {other} and {name} on one host; expected one store for each host",
                )

    def options(self, cls: Any, name: str) -> dict[str, Any]:
        """Return the options of an actor that follow from its store.

        Raises:
            TopologyError: its replica computes on several hosts, or on one without a store.
        """
        known, role = cls.Options.__struct_fields__, role_of(name)
        if role == STORE:
            names = tuple(self._by_host.values())
            return {"stores": names} if "stores" in known and len(names) > 1 else {}
        if not self._by_host or role not in (EXECUTOR, BLOCKS):
            return {}
        if role == EXECUTOR:
            return {"store_bytes": self._bytes} if "store_bytes" in known and self._store_of(name) else {}
        return {"store": self._store_of(name)} if "store" in known else {}

    def _store_of(self, name: str) -> str:
        places = self._homes.get(replica_of(name) + EXECUTOR, ())
        hosts = sorted({self._host_of(node) for node in places})
        if len(hosts) > 1:
            raise TopologyError(
                f"actors.{STORE}",
                f"the executors of {replica_of(name) or 'the model '}{EXECUTOR} are on {len(hosts)} hosts; expected "
                "one: a store shares its memory with all executors of a group",
            )
        if not hosts or hosts[0] not in self._by_host:
            raise TopologyError(
                f"actors.{STORE}",
                f"no store is on the host of {replica_of(name)}{EXECUTOR}; expected one there, such as "
                "store: {each: host}",
            )
        return self._by_host[hosts[0]]
