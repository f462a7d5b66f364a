"""The KV-block manager's shell: one `Allocation` per epoch of the executor."""

from __future__ import annotations

from typing import Any

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.protocol.allocation import Assign, Assigned, GetPoolStatistics, PoolReady, PoolStatistics
from pageant.protocol.arrays import int32
from pageant.protocol.roles import BLOCKS, Feature
from pageant.protocol.stepping import ExecutorReady
from pageant.protocol.supervision import ActorDown, ActorUp


class BlockManager(Actor):
    """Serves `Assign` for the pool of the living executor.

    An experiment with another eviction order subclasses this and sets `pool_class`.
    """

    role = BLOCKS
    features = frozenset({Feature.PROMPT_LOGPROBS})
    pool_class: type[BlockPool] = BlockPool

    class Options(ActorOptions, frozen=True, kw_only=True):
        """`enable_prefix_caching`: keep the KV of ended requests, by prefix, while there is room."""

        enable_prefix_caching: bool = True

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._allocation: Allocation | None = None
        self._epoch = 0
        self._scheduler = 0  # the incarnation whose sequences these are; earlier ones are dead

    async def on_start(self) -> None:
        self.watch("scheduler")

    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        """A new epoch's memory is empty, whatever was known of the former one's."""
        if event.epoch > self._epoch:
            self._epoch = event.epoch
            pool = self.pool_class(event.num_blocks, self.options.enable_prefix_caching)
            self._allocation = Allocation(pool, event.block_size)
        self.tell("scheduler", PoolReady(epoch=self._epoch))

    @receives
    def assign(self, request: Assign) -> None:
        """Answers with what is granted. A scheduler of a new incarnation holds nothing yet."""
        if self.sender_incarnation < self._scheduler:
            return  # it died before this came
        if self.sender_incarnation > self._scheduler:
            self._follow(self.sender_incarnation)
        meant = request.manager in (0, self.incarnation)
        if self._allocation is None or request.epoch != self._epoch or not meant:
            self.tell(self.sender, self._refusal(request))
            return
        self.tell(self.sender, self._allocation.assign(request))

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
    def statistics(self, request: GetPoolStatistics) -> PoolStatistics:
        """How the pool stands; checked for integrity first when nothing is running."""
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
    def scheduler_up(self, event: ActorUp) -> None:
        if self._allocation is not None:
            self.tell(event.address, PoolReady(epoch=self._epoch))

    @receives
    def scheduler_down(self, event: ActorDown) -> None:
        """What a dead scheduler held belongs to nobody."""
        if event.incarnation >= self._scheduler:
            self._follow(event.incarnation + 1)

    def _follow(self, incarnation: int) -> None:
        self._scheduler = incarnation
        if self._allocation is not None:
            self._allocation.release_all()
