"""Groups of ranks in threads of this process, by each implementation, for tests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pageant.kernels.collectives.base import Collectives
from pageant.kernels.collectives.local import local_group
from pageant.kernels.collectives.mirrored_store import MirroredStore
from pageant.kernels.collectives.process_group import ProcessGroup
from pageant.kernels.collectives.segment import Segment
from pageant.kernels.collectives.shared_memory import SharedMemory

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds that a test waits for threads that ought to end at once."""


def in_threads(calls: Sequence[Callable[[], T]]) -> list[T | BaseException]:
    """Run calls side by side, and return what each returned or raised."""
    found: list[T | BaseException] = [TimeoutError("did not end")] * len(calls)

    def run(number: int) -> None:
        try:
            found[number] = calls[number]()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return found


def on_ranks(group: Sequence[Collectives], call: Callable[[Collectives], T]) -> list[T]:
    """Run a call on each rank of a group, and return what each returned. Raises what one of them raised."""
    found = in_threads([lambda rank=rank: call(rank) for rank in group])
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found  # type: ignore[return-value]


@contextlib.contextmanager
def local(size: int, deadline_seconds: float = 10.0) -> Iterator[list[Collectives]]:
    """Give a group of threads."""
    yield list(local_group(size, deadline_seconds))


@contextlib.contextmanager
def gloo(size: int, deadline_seconds: float = 10.0) -> Iterator[list[Collectives]]:
    """Give a group by Gloo, whose ranks find one another by stores that call one another."""
    stores: list[MirroredStore] = []

    def publish(rank: int) -> Callable[[str, bytes], None]:
        return lambda key, value: [
            store.put(key, value) for other, store in enumerate(stores) if other != rank
        ]  # type: ignore[func-returns-value, return-value]

    stores.extend(MirroredStore(publish(rank)) for rank in range(size))

    def join(rank: int) -> Collectives:
        with stores[rank].mirroring():
            return ProcessGroup(stores[rank].store, "test/1", rank, size, deadline_seconds=deadline_seconds)

    found = in_threads([lambda rank=rank: join(rank) for rank in range(size)])
    for one in found:
        if isinstance(one, BaseException):
            raise one
    try:
        yield found  # type: ignore[misc]
    finally:
        for one in found:
            one.close()  # type: ignore[union-attr]


@contextlib.contextmanager
def shared_memory(size: int, deadline_seconds: float = 10.0) -> Iterator[list[Collectives]]:
    """Give a group by shared memory, in slots so small that tests fill several."""
    with Segment(size, slot_bytes=64 << 10, edge_bytes=16 << 10) as segment:
        found = in_threads(
            [lambda rank=rank: SharedMemory(segment.address, rank, deadline_seconds) for rank in range(size)]
        )
    for one in found:
        if isinstance(one, BaseException):
            raise one
    try:
        yield found  # type: ignore[misc]
    finally:
        for one in found:
            one.close()  # type: ignore[union-attr]


GROUPS = {"local": local, "gloo": gloo, "shm": shared_memory}
