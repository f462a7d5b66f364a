"""Store in which the ranks of a torch.distributed group find one another, mirrored by the caller's own messages.

torch's own stores need a file that all ranks see or an open port that anyone may write to. This one needs neither: each
rank has a store in memory, and what is put into it there is published to the other ranks over whatever links they have.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from torch._C._distributed_c10d import HashStore

__all__ = ["MirroredStore"]

_PUMP_SECONDS = 0.002


class MirroredStore:
    """Rank's copy of the store.

    Args:
        publish: called with a key and a value that this rank's group has put. It must bring them to `put` of every
            other rank's store, in any order. It is called from the thread that `mirroring` starts.
    """

    def __init__(self, publish: Callable[[str, bytes], None]) -> None:
        self.store = HashStore()
        """torch's view of the store."""
        self._publish = publish
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def put(self, key: str, value: bytes) -> None:
        """Add a key that another rank has published. May be called from any thread."""
        with self._lock:
            self._seen.add(key)
            self.store.set(key, value)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def mirroring(self) -> Iterator[None]:
        """Publish keys of this rank, within the context, from a thread of its own."""
        ended = threading.Event()

        def publish_new() -> None:
            while not ended.wait(_PUMP_SECONDS):
                self._publish_new()

        thread = threading.Thread(target=publish_new, name="pageant-rendezvous", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._publish_new()

    def _publish_new(self) -> None:
        with self._lock:
            new = [key for key in self.store.list_keys() if key not in self._seen]
            self._seen.update(new)
            found = [(key, self.store.get(key)) for key in new]
        for key, value in found:
            self._publish(key, value)
