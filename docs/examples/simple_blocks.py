"""A KV-block manager written from the protocol alone: blocks on a stack, and no prefix caching.

cd docs/examples
pageant run --topology simple_blocks.yaml "Explain lambda"
pageant conformance blocks simple_blocks:SimpleBlocks
"""

from __future__ import annotations

from pageant.actors.runtime import Actor, receives
from pageant.protocol.allocation import (
    Admission,
    Admitted,
    Assign,
    Assigned,
    GetPoolStatistics,
    PoolReady,
    PoolStatistics,
)
from pageant.protocol.arrays import int32
from pageant.protocol.roles import BLOCKS
from pageant.protocol.stepping import ExecutorReady
from pageant.protocol.supervision import ActorDown, ActorUp


class SimpleBlocks(Actor):
    """Knows which blocks are free, and which sequence has which of the others."""

    role = BLOCKS

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self._epoch = 0  # of the executor whose memory this is; 0 before there is one
        self._scheduler = 0  # the incarnation whose sequences these are; earlier ones are dead
        self._num_blocks, self._block_size, self._num_groups = 0, 1, 1
        self._free: list[int] = []
        self._tables: dict[int, list[int]] = {}

    # Who is there.

    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        if event.epoch > self._epoch:
            self._epoch = event.epoch
            self._num_blocks, self._block_size = event.num_blocks, event.block_size
            self._num_groups = len(event.windows)  # of layers, each of which has blocks of its own
            self._start_empty()
        self.tell("scheduler", PoolReady(epoch=self._epoch))

    async def on_start(self) -> None:
        self.watch("scheduler")

    @receives
    def scheduler_up(self, event: ActorUp) -> None:
        if self._epoch:
            self.tell(event.address, PoolReady(epoch=self._epoch))

    @receives
    def scheduler_down(self, event: ActorDown) -> None:
        """Forget all blocks: what the scheduler held belongs to nobody."""
        self._follow(event.incarnation + 1)

    def _follow(self, incarnation: int) -> None:
        if incarnation > self._scheduler:
            self._scheduler = incarnation
            self._start_empty()

    def _start_empty(self) -> None:
        self._tables.clear()
        self._free = list(range(self._num_blocks))

    # One exchange.

    @receives
    def assign(self, request: Assign) -> None:
        if self.sender_incarnation < self._scheduler:
            return  # it died before this came
        self._follow(self.sender_incarnation)
        counts: list[int] = []
        grown: list[int] = []
        admitted: list[Admitted] = []
        if request.epoch == self._epoch and request.manager in (0, self.incarnation):
            for serial in request.freed.tolist():
                self._free += self._tables.pop(serial, [])
            self._grow(request, counts, grown)
            if len(counts) == len(request.grow_serials):
                admitted = self._admit(request)
        answer = Assigned(
            step=request.step,
            epoch=self._epoch,
            num_grown=len(counts),
            grown_counts=int32(counts),
            grown_blocks=int32(grown),
            admitted=tuple(admitted),
            blocks_free=len(self._free),
            num_blocks=self._num_blocks,
        )
        self.tell(self.sender, answer)

    def _grow(self, request: Assign, counts: list[int], grown: list[int]) -> None:
        """Grants growth in order, up to the first that does not fit."""
        for serial, length in zip(request.grow_serials.tolist(), request.grow_lengths.tolist(), strict=True):
            table = self._tables.get(serial)
            count = self._blocks_for(length) - len(table or ())
            if table is None or count > len(self._free):
                return
            blocks = self._take(max(0, count))
            table += blocks
            grown += blocks
            counts.append(len(blocks))

    def _admit(self, request: Assign) -> list[Admitted]:
        """Admits in order, up to the first that does not fit, or for which no token is left."""
        admitted: list[Admitted] = []
        left = request.admission_tokens
        for admission in request.admissions:
            if not left or self._blocks_for(len(admission.token_ids)) > len(self._free):
                break
            admitted.append(self._admit_one(admission, min(left, len(admission.token_ids))))
            left -= admitted[-1].num_tokens
        return admitted

    def _admit_one(self, admission: Admission, num_tokens: int) -> Admitted:
        table = self._tables[admission.serial] = self._take(self._blocks_for(num_tokens))
        return Admitted(
            serial=admission.serial, blocks=int32(table), num_cached_tokens=0, num_tokens=num_tokens
        )

    def _take(self, count: int) -> list[int]:
        return [self._free.pop() for _ in range(count)]

    def _blocks_for(self, length: int) -> int:
        return -(-length // self._block_size) * self._num_groups

    @receives
    def statistics(self, request: GetPoolStatistics) -> PoolStatistics:
        return PoolStatistics(
            num_blocks=self._num_blocks,
            blocks_free=len(self._free),
            blocks_cached=0,
            blocks_held=self._num_blocks - len(self._free),
            tokens_queried=0,
            tokens_hit=0,
            evictions=0,
        )
