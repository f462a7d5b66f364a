"""The router's core for one model: events of its replicas in, decisions out; no I/O, no clock.

Times (`now`) are seconds of the shell's clock.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pageant.actors.router.candidates import Candidate, Candidates
from pageant.actors.router.columns import ReplicaColumns
from pageant.actors.router.handover import Handover, is_apart
from pageant.actors.router.index import PrefixIndex
from pageant.actors.router.policies import LeastLoaded, RoutedRequest, RoutingPolicy
from pageant.actors.router.rebalancing import SHORT_OF_MEMORY, MoveAdvice, Rebalancer
from pageant.actors.router.replica import Replica
from pageant.protocol.arrays import int32, int64
from pageant.protocol.block_names import block_names, full_blocks, root_name
from pageant.protocol.following import BlockEvents
from pageant.protocol.routing import Load, ReplicaLoad, Route, Routed

log = logging.getLogger("pageant.router")


class RouterCore:
    """State of the router for one model: its replicas with their work and cached blocks.

    Args:
        first_ticket: the number of the first ticket; lives of the router have different ones.
        needs: roles without which a replica computes nothing, beside its scheduler.
        handover: whether prompts are computed by replicas that are for that.
        rebalance: whether requests move from replicas that lack memory.
    """

    def __init__(
        self,
        policy: RoutingPolicy,
        first_ticket: int = 1,
        needs: frozenset[str] = frozenset(),
        handover: Handover = "auto",
        *,
        rebalance: bool = True,
    ) -> None:
        self.policy, self._handover = policy, handover
        self._needs = needs
        self._rebalancer = Rebalancer() if rebalance else None
        self._fallback = LeastLoaded()
        self._index = PrefixIndex()
        # Replicas by name: from the first of their actors that is up until they leave the topology.
        self._replicas: dict[str, Replica] = {}
        # The same replicas, by their bit in the prefix index. Each has another; that of one that left is used again.
        self._by_bit: dict[int, Replica] = {}
        # Replicas that have charges, and perhaps some that had.
        self._charged: dict[str, Replica] = {}
        self._columns = ReplicaColumns(self._takes_requests)
        self._tickets = itertools.count(first_ticket)
        self._block_size = 0  # 0 until a block manager has said it
        self._has_complained = False
        self.decisions = self.tokens = self.hit_tokens = self.policy_failures = 0

    # The replicas.

    def scheduler_up(
        self, name: str, incarnation: int, *, is_draining: bool = False, only_prefills: bool = False
    ) -> None:
        """Take note of a replica's scheduler that is up."""
        replica = self._replica(name)
        replica.only_prefills = only_prefills
        if incarnation > replica.incarnation:
            replica.forget_work()
        replica.incarnation, replica.is_up, replica.is_draining = incarnation, True, is_draining
        self._columns.reorder()

    def scheduler_down(self, name: str, incarnation: int) -> None:
        """Take note of a replica's scheduler that is down."""
        replica = self._replicas.get(name)
        if replica is not None and incarnation >= replica.incarnation:
            replica.is_up = False
            replica.forget_work()
            self._columns.reorder()

    def other_up(self, name: str, role: str) -> None:
        """Take note of another actor of a replica that is up."""
        self._replica(name).others_up.add(role)
        self._columns.reorder()

    def other_down(self, name: str, role: str) -> None:
        """Route nothing to a replica that needs an actor which is down."""
        if (replica := self._replicas.get(name)) is not None:
            replica.others_up.discard(role)
            self._columns.reorder()

    def _takes_requests(self, replica: Replica) -> bool:
        return replica.is_up and not replica.is_draining and replica.others_up >= self._needs

    def draining(self, name: str, *, is_draining: bool) -> None:
        """Route no requests to a replica, or route to it again."""
        if (replica := self._replicas.get(name)) is not None:
            replica.is_draining = is_draining
            self._columns.reorder()

    def remove(self, name: str) -> None:
        """Forget a replica that has left the topology."""
        replica = self._replicas.pop(name, None)
        if replica is not None:
            self._index.reset(replica.bit)
            del self._by_bit[replica.bit]
            self._charged.pop(name, None)
            self._columns.reorder()

    def blocks_changed(self, name: str, events: BlockEvents) -> None:
        """Take note of blocks that a replica has stored or removed."""
        replica = self._replica(name)
        self._block_size = events.block_size
        if events.reset:
            self._index.reset(replica.bit)
        for tier in {block.tier for block in events.removed}:
            gone = [block.name for block in events.removed if block.tier == tier]
            self._index.remove(replica.bit, gone, tier)
        for tier in {block.tier for block in events.stored}:
            self._index.store(replica.bit, [one.name for one in events.stored if one.tier == tier], tier)

    def blocks_gone(self, name: str) -> None:
        """Forget the blocks of a replica whose block manager is down."""
        if (replica := self._replicas.get(name)) is not None:
            self._index.reset(replica.bit)

    def loaded(self, name: str, incarnation: int, load: Load) -> None:
        """Take over a replica's work, and settle the charges that it contains."""
        replica = self._replicas.get(name)
        if replica is None or incarnation != replica.incarnation or not replica.is_up:
            return  # of another life
        replica.load = load
        for ticket in load.seen.tolist():
            replica.settle(ticket)
        self._columns.changed(replica)

    def _replica(self, name: str) -> Replica:
        replica = self._replicas.get(name)
        if replica is None:
            bit = 1 << next(number for number in itertools.count() if 1 << number not in self._by_bit)
            replica = self._replicas[name] = self._by_bit[bit] = Replica(name, bit)
            self._columns.reorder()
        return replica

    # Decisions.

    def route(self, asked: Route, now: float) -> Routed:
        """Return where each request had best be submitted at `now` seconds."""
        self._index.expire(now)
        self._expire_charges(now)
        advice, start = [], 0
        for row, length in enumerate(asked.lengths.tolist()):
            token_ids = asked.token_ids[start : start + length]
            start += length
            advice.append(self._route(asked, row, token_ids, now))
        places, tickets, expected, via = zip(*advice, strict=True) if advice else ((), (), (), ())
        return Routed(
            places=places,
            tickets=int64(tickets),
            expected_tokens=int32(expected),
            via=via if any(via) else (),
        )

    def _expire_charges(self, now: float) -> None:
        """Take away charges that are too old, and look no more at replicas without any."""
        for name, replica in [*self._charged.items()]:
            if replica.expire(now):
                self._columns.changed(replica)
            if not replica.charges:
                del self._charged[name]

    def _route(
        self, asked: Route, row: int, token_ids: npt.NDArray[np.int32], now: float
    ) -> tuple[str, int, int, str]:
        self._columns.refresh(self._replicas)
        bits = self._columns.bits
        if not bits:
            return "", 0, len(token_ids), ""
        text_tokens = int(asked.text_tokens[row])
        root = root_name(asked.salts[row], asked.extra_keys[row], asked.adapters[row])
        names = self._names(root, token_ids, text_tokens)
        depths, _ = self._index.match(iter(names), bits)
        request = RoutedRequest(
            num_tokens=len(token_ids),
            max_tokens=int(asked.max_tokens[row]),
            tenant=asked.tenants[row],
            prefix=names[0] if names else b"",
        )
        candidates = self._columns.candidates(depths, self._block_size, len(token_ids), now)
        chosen, prefills = self._choose_kind(request, candidates), False
        place = chosen.name
        if text_tokens == len(token_ids) and request.max_tokens != 1:
            first = self._choose_prefill(request, candidates)
            if first is not None and is_apart(self._handover, request, first, chosen, self._block_size):
                chosen, prefills = first, True
        replica, cached = self._replicas[chosen.name], chosen.cached_tokens
        ticket = next(self._tickets)
        replica.charge(ticket, len(token_ids) - cached, now)
        self._charged[replica.name] = replica
        self._columns.changed(replica)
        self._index.predict(replica.bit, names[depths.get(replica.bit, 0) :], now)
        self.decisions += 1
        self.tokens += len(token_ids)
        self.hit_tokens += cached
        return place, ticket, len(token_ids) - cached, chosen.name if prefills else ""

    def _choose_kind(self, request: RoutedRequest, candidates: Candidates) -> Candidate:
        """Choose among replicas that go on with outputs; among all where none of those is up."""
        prefills = self._columns.only_prefills
        some = candidates.where(~prefills) if prefills.any() else candidates
        return self._choose(request, some if len(some) else candidates)

    def _choose_prefill(self, request: RoutedRequest, candidates: Candidates) -> Candidate | None:
        """Choose among replicas that are for prompts, where others are there to go on."""
        prefills = self._columns.only_prefills
        if not prefills.any() or prefills.all():
            return None
        return self._choose(request, candidates.where(prefills))

    def _names(self, root: bytes, token_ids: npt.NDArray[np.int32], text_tokens: int) -> list[bytes]:
        """Return the names of the full blocks before a prompt's embeddings.

        The last token is always computed, so that its block is none.
        """
        if not self._block_size:
            return []
        blocks, _ = full_blocks(token_ids[: min(text_tokens, len(token_ids) - 1)], self._block_size)
        return block_names(root, blocks)

    def _choose(self, request: RoutedRequest, candidates: Candidates) -> Candidate:
        """Ask the policy. Where it fails, the least laden replica is chosen; the first failure is logged."""
        try:
            chosen = self.policy.choose(request, candidates)
            return candidates[candidates.name.index(chosen.name)]
        except Exception as error:  # a policy may be anybody's
            self.policy_failures += 1
            if not self._has_complained:
                self._has_complained = True
                kind = type(self.policy).__qualname__
                log.warning(
                    "the routing policy %s chose no replica: %r; the least laden are taken", kind, error
                )
            return self._fallback.choose(request, candidates)

    # Moves.

    def rebalance(self, now: float) -> MoveAdvice | None:
        """Return the move of running requests that is due at `now` seconds, if one is."""
        if self._rebalancer is None:
            return None
        self._columns.refresh(self._replicas)
        if self._columns.most_memory < SHORT_OF_MEMORY:
            return None
        found = (
            one for one in self._replicas.values() if self._takes_requests(one) and not one.only_prefills
        )
        return self._rebalancer.advise([one.memory_use for one in found], now)

    # Looking in.

    def replicas(self) -> Iterator[tuple[str, ReplicaLoad]]:
        """Yield each replica's prefix, and what is known of it."""
        for name, one in self._replicas.items():
            yield (
                name,
                ReplicaLoad(
                    waiting_tokens=one.waiting_tokens,
                    running=one.running,
                    waiting=one.waiting,
                    seconds_per_token=0.0 if one.load is None else one.load.seconds_per_token,
                    blocks=self._index.count(one.bit),
                    takes_requests=self._takes_requests(one),
                    requests=one.requests,
                ),
            )
