"""The work of all replicas by columns, kept up to date by events, from which each decision takes its candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from pageant.actors.router.candidates import OUTPUT_TOKENS, Candidates, Floats, Numbers
from pageant.actors.router.replica import RECENT_SECONDS, Replica

SECONDS_PER_TOKEN = 1e-3
"""Taken where no replica of the model has computed anything."""


class ReplicaColumns:
    """Columns of the replicas that take requests, in the order in which they came.

    A replica whose work has changed is written anew before the next decision (`changed`). One that comes, leaves,
    or takes requests no longer has all of them written anew (`reorder`).

    Args:
        takes_requests: whether a replica takes requests.
    """

    def __init__(self, takes_requests: Callable[[Replica], bool]) -> None:
        self._takes_requests = takes_requests
        # Those that take requests are `_order[_takes]`; all others only count for what is usual.
        self._order: list[Replica] = []
        self._places: dict[str, int] = {}
        self._takes: Numbers = np.zeros(0, np.int64)
        self._names: list[str] = []
        # Bit masks of those that take requests, and of all of them together.
        self._places_of_bits: dict[int, int] = {}
        self.bits = 0
        # bool, by place among those: the replica is for prompts.
        self.only_prefills = np.zeros(0, np.bool_)
        # Replicas whose columns are out of date; None if all are, with the order.
        self._changed: dict[str, Replica] | None = None
        # int64 and float64, by place in `_order`: as in `Candidate`, but for what depends on request and time.
        self._waiting_tokens = self._running = self._requests = self._takes
        # float64: as the latest load has them, 0 where it is not known.
        self._seconds: Floats = np.zeros(0)
        self._outputs: Floats = np.zeros(0)
        # float64: see `MemoryUse.share`.
        self._memory: Floats = np.zeros(0)
        # float64: see `Replica.recent`.
        self._recent: Floats = np.zeros(0)
        self._recent_at: Floats = np.zeros(0)

    def changed(self, replica: Replica) -> None:
        """Note that a replica has other work than before."""
        if self._changed is not None:
            self._changed[replica.name] = replica

    def reorder(self) -> None:
        """Note that a replica has come, has left, or takes requests where it did not, or the other way round."""
        self._changed = None

    def refresh(self, replicas: Mapping[str, Replica]) -> None:
        """Bring all columns up to date."""
        if self._changed is None:
            self._rebuild(list(replicas.values()))
            self._changed = {}
        elif self._changed:
            self._write(self._changed.values())
            self._changed.clear()

    def _rebuild(self, order: list[Replica]) -> None:
        self._order, count = order, len(order)
        self._places = {one.name: place for place, one in enumerate(order)}
        takes = [place for place, one in enumerate(order) if self._takes_requests(one)]
        self._takes = np.array(takes, np.int64)
        self._names = [order[place].name for place in takes]
        self._places_of_bits = {order[place].bit: at for at, place in enumerate(takes)}
        self.bits = sum(self._places_of_bits)
        self.only_prefills = np.array([order[place].only_prefills for place in takes], np.bool_)
        self._waiting_tokens, self._running, self._requests = np.zeros((3, count), np.int64)
        self._seconds, self._outputs, self._memory, self._recent, self._recent_at = np.zeros((5, count))
        self._write(order)

    def _write(self, replicas: Iterable[Replica]) -> None:
        for one in replicas:
            place, load = self._places[one.name], one.load
            self._waiting_tokens[place] = one.waiting_tokens
            self._running[place] = one.running
            self._requests[place] = one.requests
            self._seconds[place] = 0.0 if load is None else max(0.0, load.seconds_per_token)
            self._outputs[place] = 0.0 if load is None else load.output_tokens
            self._memory[place] = one.memory_use.share
            self._recent[place], self._recent_at[place] = one.recent, one.recent_at

    @property
    def most_memory(self) -> float:
        """Return the largest share of KV memory that a replica's requests need; see `MemoryUse.share`."""
        return float(self._memory[self._takes].max(initial=0.0))

    def candidates(
        self, depths: Mapping[int, int], block_size: int, num_tokens: int, now: float
    ) -> Candidates:
        """Return the replicas that take requests, for a prompt of so many tokens, as of `now` seconds.

        Args:
            depths: the blocks of the prompt that replicas have, by bit; those that have none may be left out.
        """
        takes, names = self._takes, self._names
        usual = _mean(self._seconds, SECONDS_PER_TOKEN)
        measured = self._seconds[takes]
        seconds = np.where(measured > 0, measured, usual)
        cached = np.zeros(len(names), np.int64)
        for bit, depth in depths.items():
            cached[self._places_of_bits[bit]] = min(depth * block_size, num_tokens)
        recent = self._recent[takes] * np.exp((self._recent_at[takes] - now) / RECENT_SECONDS)
        return Candidates(
            name=names,
            cached_tokens=cached,
            waiting_tokens=self._waiting_tokens[takes],
            running=self._running[takes],
            requests=self._requests[takes],
            seconds_per_token=seconds,
            output_tokens=np.full(len(names), _mean(self._outputs, OUTPUT_TOKENS)),
            busy=recent * seconds / RECENT_SECONDS,
        )


def _mean(found: Floats, otherwise: float) -> float:
    """Return the mean of what replicas have measured; those that have not say 0."""
    known = found[found > 0]
    return float(known.mean()) if len(known) else otherwise
