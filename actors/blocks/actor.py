"""The KV-block manager's shell: one `Allocation` per epoch of the executor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.costs import TIER_MOVES, MoveCosts
from pageant.actors.blocks.followers import Follower, Key
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.storing import StoringManager
from pageant.actors.blocks.tiers import Tiers
from pageant.actors.runtime import ActorOptions, receives
from pageant.actors.runtime.address import role_of
from pageant.actors.runtime.sizes import parse_bytes
from pageant.protocol.allocation import Assign, Assigned, GetPoolStatistics, PoolReady, PoolStatistics
from pageant.protocol.arrays import int32
from pageant.protocol.following import BlockEvents, FollowBlocks, StoredBlock
from pageant.protocol.lifecycle import PrefixCacheReset, ResetPrefixCache
from pageant.protocol.roles import BLOCKS, STORE
from pageant.protocol.stepping import ExecutorReady
from pageant.protocol.supervision import ActorDown, ActorUp
from pageant.protocol.tiers import MoveTimes

log = logging.getLogger("pageant.blocks")

# Bytes of a tier.
SIZE_MAX = 2**50
# Slots of a tier. Bookkeeping takes some hundred bytes for each.
SLOTS_MAX = 2**26


class BlockManager(StoringManager):
    """Serves `Assign` for the pool of the living executor.

    An experiment with another eviction order subclasses this and sets `pool_class`.
    """

    role = BLOCKS
    features = BLOCKS.features
    pool_class: type[BlockPool] = BlockPool

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the block manager.

        Attributes:
            enable_prefix_caching: keep the KV of ended requests, by prefix, while there is room.
            host_memory: bytes of the host's memory, such as `8GiB`, for blocks that there is no room for on the
                device. They are restored where that is quicker than computing them again.
            disk_space: bytes of the disk, such as `100GiB`, for blocks that there is no room for in the host's
                memory; in the executor's `disk_path`.
            store: the address of the KV store of the executor's host. Filled in where a topology has one.
        """

        enable_prefix_caching: bool = True
        host_memory: str | int = 0
        disk_space: str | int = 0
        store: str = ""

        def __post_init__(self) -> None:
            for name in ("host_memory", "disk_space"):
                size = getattr(self, name)
                try:
                    wanted = parse_bytes(size)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
                if not 0 <= wanted <= SIZE_MAX:
                    raise ValueError(f"{name} is {size!r}; expected a size such as 8GiB, of 0 to 1 PiB")
                if wanted and not self.enable_prefix_caching:
                    raise ValueError(f"{name} keeps cached prefixes; it needs enable_prefix_caching")
            if parse_bytes(self.disk_space) and not parse_bytes(self.host_memory):
                raise ValueError("disk_space keeps what there is no room for in host_memory, which is 0")
            if self.store and not self.enable_prefix_caching:
                raise ValueError(
                    "enable_prefix_caching is False; expected True with a store, which keeps cached prefixes"
                )
            if self.store and parse_bytes(self.host_memory):
                raise ValueError(
                    f"host_memory is {self.host_memory!r}; expected none with a store, which keeps the same blocks in "
                    "the same memory"
                )

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._allocation: Allocation | None = None
        # The executor's incarnation; 0 before the first.
        self._epoch = 0
        # The incarnation of the scheduler that owns the sequences. Earlier ones are dead.
        self._scheduler = 0
        # Followers, each with an event that is set while it has something to send.
        self._followers: dict[Follower, asyncio.Event] = {}

    async def on_start(self) -> None:
        self.watch("scheduler")
        if self.options.store:
            self.watch(self.options.store)

    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        """Make an empty pool for a new epoch."""
        if event.epoch > self._epoch:
            self._epoch = event.epoch
            pool = self.pool_class(event.num_blocks, self.options.enable_prefix_caching)
            allocation = self._allocation = Allocation(
                pool, event.block_size, self._make_tiers(event, pool), event.windows, event.num_states
            )
            self._use_store(event, allocation, self.sender)
            for follower in self._followers:
                follower.start_over()
            allocation.follow(self._note if self._followers else None)
            self._wake_followers()
        self.tell("scheduler", PoolReady(epoch=self._epoch))

    @receives(concurrent=True)
    async def follow(self, request: FollowBlocks) -> AsyncIterator[BlockEvents]:
        """Stream all blocks that there are, and then every one that is stored or removed."""
        follower, wake = Follower(tokens=request.tokens), asyncio.Event()
        self._followers[follower] = wake
        wake.set()
        try:
            while True:
                await wake.wait()
                wake.clear()
                allocation = self._allocation
                if allocation is not None:
                    allocation.follow(self._note)
                    for events in follower.take(self._epoch, allocation.block_size, allocation.stored):
                        yield events
        finally:
            del self._followers[follower]
            if not self._followers and self._allocation is not None:
                self._allocation.follow(None)

    def _note(self, key: Key, block: StoredBlock | None) -> None:
        for follower in self._followers:
            follower.note(key, block)

    def _wake_followers(self) -> None:
        for follower, wake in self._followers.items():
            if follower.has_events:
                wake.set()

    def _make_tiers(self, event: ExecutorReady, pool: BlockPool) -> Tiers | None:
        """Return the tiers below the device that options and the executor's host have room for; None if there
        are none.
        """
        host = self._num_slots("host_memory", event.host_bytes, event.block_bytes)
        disk = self._num_slots("disk_space", event.disk_bytes, event.block_bytes)
        tokens = event.block_size / len(event.windows)
        return Tiers(pool, MoveCosts(), tokens, host, disk) if host else None

    def _num_slots(self, name: str, left: int, block_bytes: int) -> int:
        wanted = parse_bytes(getattr(self.options, name))
        if wanted > left:
            log.warning(
                "%s is %s, and the executor can have %d MiB: it is taken down to that",
                *(name, getattr(self.options, name), left // 2**20),
            )
        return min(min(wanted, left) // block_bytes, SLOTS_MAX) if block_bytes else 0

    @receives
    def measured(self, event: MoveTimes) -> None:
        """Record the times of the executor's steps and moves."""
        if event.epoch != self._epoch or self._allocation is None:
            return
        tiers = self._allocation.tiers
        costs = self._store_costs if tiers is None else tiers.costs
        for tokens, seconds in zip(event.step_tokens.tolist(), event.step_seconds.tolist(), strict=True):
            costs.stepped(tokens, seconds)
        if tiers is None:
            return
        for route, moved in zip(TIER_MOVES, (event.host, event.written, event.read), strict=True):
            tiers.costs.moved(route, moved)

    @receives
    def assign(self, request: Assign) -> None:
        """Answer with what is granted. A scheduler of a new incarnation holds nothing yet."""
        if self.sender_incarnation < self._scheduler:
            # The scheduler died before its message came.
            return
        if self.sender_incarnation > self._scheduler:
            self._follow(self.sender_incarnation)
        meant = request.manager in (0, self.incarnation)
        if self._allocation is None or request.epoch != self._epoch or not meant:
            self.tell(self.sender, self._refusal(request))
            return
        self.tell(self.sender, self._allocation.assign(request))
        self._wake_followers()
        self._tend_store()

    def _refusal(self, request: Assign) -> Assigned:
        return Assigned(
            step=request.step,
            epoch=self._epoch,
            num_grown=0,
            grown_counts=int32(),
            grown_blocks=int32(),
            admitted=(),
            blocks_free=0,
            num_blocks=0,
        )

    @receives
    def reset(self, request: ResetPrefixCache) -> PrefixCacheReset:
        """Forget every cached prefix. Running sequences keep their blocks."""
        if self._allocation is None:
            return PrefixCacheReset(blocks=0)
        blocks, below = self._allocation.forget_prefixes(below=request.below)
        if request.below:
            self._forget_stored()
        self._wake_followers()
        return PrefixCacheReset(blocks=blocks, blocks_below=below)

    @receives
    def statistics(self, request: GetPoolStatistics) -> PoolStatistics:
        """Return the state of the pool. Checks its integrity first if no sequence runs."""
        if self._allocation is None:
            return PoolStatistics(
                num_blocks=0,
                blocks_free=0,
                blocks_cached=0,
                blocks_held=0,
                tokens_queried=0,
                tokens_hit=0,
                evictions=0,
            )
        if not len(self._allocation):
            self._allocation.check_integrity()
        return self._allocation.statistics()

    @receives
    def peer_up(self, event: ActorUp) -> None:
        """Tell a scheduler of the pool; use a store."""
        if role_of(event.address) == STORE.name:
            self.store_up()
        elif self._allocation is not None:
            self.tell(event.address, PoolReady(epoch=self._epoch))

    @receives
    def peer_down(self, event: ActorDown) -> None:
        """Free the sequences of a scheduler that died; do without a store that did."""
        if role_of(event.address) == STORE.name:
            self.store_down()
        elif event.incarnation >= self._scheduler:
            self._follow(event.incarnation + 1)

    def _follow(self, incarnation: int) -> None:
        self._scheduler = incarnation
        if self._allocation is not None:
            self._allocation.release_all()
            self._wake_followers()
