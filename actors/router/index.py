"""Index of the blocks that are cached on each replica, and of those that are about to be.

A core. A set of replicas is a bit mask. A prompt that was just sent to a replica counts as cached there: a herd of
requests that begin alike goes to few replicas, although none has computed their prefix yet.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

DEVICE = "device"
"""The tier that every replica has."""
PREDICTION_SECONDS = 10.0
"""Time for which a block counts as cached on a replica without an event that says so."""


class PrefixIndex:
    """Names of blocks, with the replicas that have them. Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        # The replicas that have a block in a tier, by name; and those that are about to have it. No mask is 0.
        self._tiers: dict[str, dict[bytes, int]] = {DEVICE: {}}
        self._predicted: dict[bytes, int] = {}
        # When a prediction ends, by replica and name; and all ends in their order, those of renewed ones too.
        self._ends: defaultdict[int, dict[bytes, float]] = defaultdict(dict)
        self._queue: deque[tuple[float, int, list[bytes]]] = deque()
        # The number of blocks of each replica, in all tiers.
        self._counts: dict[int, int] = {}

    def count(self, bit: int) -> int:
        """Return how many blocks a replica has cached."""
        return self._counts.get(bit, 0)

    def keys_of(self, bit: int) -> Iterator[tuple[str, bytes]]:
        """Yield the tier and the name of each block that a replica has cached."""
        for tier, cached in self._tiers.items():
            yield from ((tier, name) for name, mask in cached.items() if mask & bit)

    def store(self, bit: int, names: Iterable[bytes], tier: str = DEVICE) -> None:
        """Note that a replica has blocks in a tier. They are no predictions any more."""
        cached, count = self._tiers.setdefault(tier, {}), 0
        for name in names:
            mask = cached.get(name, 0)
            if not mask & bit:
                cached[name] = mask | bit
                count += 1
            if name in self._predicted:
                self._unpredict(name, bit)
        self._counts[bit] = self._counts.get(bit, 0) + count

    def remove(self, bit: int, names: Iterable[bytes], tier: str = DEVICE) -> None:
        """Note that a replica does not have blocks in a tier any more."""
        cached, count = self._tiers.setdefault(tier, {}), 0
        for name in names:
            mask = cached.get(name, 0)
            if mask & bit:
                count += 1
                _put(cached, name, mask & ~bit)
        self._counts[bit] = self._counts.get(bit, 0) - count

    def reset(self, bit: int) -> None:
        """Forget everything that a replica had or was about to have."""
        if self._counts.pop(bit, 0):
            for cached in self._tiers.values():
                for name in [name for name, mask in cached.items() if mask & bit]:
                    _put(cached, name, cached[name] & ~bit)
        for name in [name for name, mask in self._predicted.items() if mask & bit]:
            self._unpredict(name, bit)

    def predict(self, bit: int, names: Iterable[bytes], now: float) -> None:
        """Expect a replica to have blocks soon, if it does not have them."""
        end, predicted = now + PREDICTION_SECONDS, self._predicted
        new = [*names]
        for cached in self._tiers.values():
            if cached:
                having = cached.get
                new = [name for name in new if not having(name, 0) & bit]
        expected = predicted.get
        for name in new:
            predicted[name] = expected(name, 0) | bit
        self._ends[bit].update(dict.fromkeys(new, end))
        if new:
            self._queue.append((end, bit, new))

    def expire(self, now: float) -> None:
        """Forget predictions that did not come true in time."""
        queue = self._queue
        while queue and queue[0][0] <= now:
            end, bit, names = queue.popleft()
            for name in names:
                if self._ends[bit].get(name) == end:
                    self._unpredict(name, bit)

    def _unpredict(self, name: bytes, bit: int) -> None:
        self._ends[bit].pop(name, None)
        _put(self._predicted, name, self._predicted.get(name, 0) & ~bit)

    def match(self, names: Iterator[bytes], bits: int) -> tuple[dict[int, int], list[bytes]]:
        """Return how many blocks of a prompt each replica has from its beginning on, and the names that were read.

        Replicas that have none are left out. Names are read up to the first that no replica has.

        Args:
            bits: the replicas to look at.
        """
        device, predicted = self._tiers[DEVICE], self._predicted
        below = [cached for tier, cached in self._tiers.items() if tier != DEVICE]
        depths: dict[int, int] = {}
        read: list[bytes] = []
        alive = bits
        for name in names:
            read.append(name)
            having = device.get(name, 0) | predicted.get(name, 0)
            for cached in below:
                having |= cached.get(name, 0)
            having &= alive
            if having != alive:
                _leave(depths, alive & ~having, len(read) - 1)
                alive = having
                if not alive:
                    break
        _leave(depths, alive, len(read))
        return depths, read


def _leave(depths: dict[int, int], bits: int, depth: int) -> None:
    """Note the depth of each of the replicas that have no more blocks, unless it is 0."""
    while bits and depth:
        bit = bits & -bits
        depths[bit] = depth
        bits ^= bit


def _put(masks: dict[bytes, int], name: bytes, mask: int) -> None:
    """Set a mask. None is kept that is 0."""
    if mask:
        masks[name] = mask
    else:
        masks.pop(name, None)
