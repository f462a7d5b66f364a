"""Block managers with one fault each."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from pageant.actors.blocks.actor import BlockManager
from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.learning import Learning
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.tiers import Tiers
from pageant.actors.runtime import receives
from pageant.protocol.allocation import Assign, Assigned
from pageant.protocol.stepping import ExecutorReady
from pageant.protocol.supervision import ActorDown

replace = msgspec.structs.replace


class Altered(BlockManager):
    """A block manager whose answers are changed on their way out."""

    def tell(self, address, message):
        changed = self.change(message) if isinstance(message, Assigned) else message
        if changed is not None:
            super().tell(address, changed)

    def change(self, answer):
        return answer


class Silent(Altered):
    def change(self, answer):
        return None if answer.step % 9 == 0 else answer


class Chatty(Altered):
    def change(self, answer):
        super(Altered, self).tell("scheduler", answer)
        return answer


class Sharing(BlockManager):
    """Shares prefixes of equal tokens, whatever else their KV depends on."""

    left_out: ClassVar = {}

    @receives
    def assign(self, request: Assign) -> None:
        plain = tuple(replace(one, **self.left_out) for one in request.admissions)
        super().assign(replace(request, admissions=plain))


class SharingSalts(Sharing):
    left_out: ClassVar = {"salt": None}


class SharingKeys(Sharing):
    left_out: ClassVar = {"extra_keys": ()}


class SharingAdapters(Sharing):
    left_out: ClassVar = {"adapter": None}


class WrongStep(Altered):
    def change(self, answer):
        return replace(answer, step=answer.step + 1)


class Optimist(Altered):
    def change(self, answer):
        return replace(answer, blocks_free=answer.num_blocks)


class OutOfOrder(Altered):
    def change(self, answer):
        return replace(answer, admitted=answer.admitted[::-1])


class Overtaking(Altered):
    def change(self, answer):
        return replace(answer, admitted=answer.admitted[1:])


class AllCached(Altered):
    def change(self, answer):
        admitted = tuple(
            replace(grant, num_cached_tokens=grant.num_cached_tokens + grant.num_tokens)
            for grant in answer.admitted
        )
        return replace(answer, admitted=admitted)


class TooShort(Altered):
    def change(self, answer):
        return replace(
            answer,
            admitted=tuple(replace(grant, blocks=grant.blocks[:-1].copy()) for grant in answer.admitted),
        )


class Beyond(Altered):
    def change(self, answer):
        return replace(
            answer, admitted=tuple(replace(grant, blocks=grant.blocks + 1000) for grant in answer.admitted)
        )


class SameBlocks(Altered):
    def change(self, answer):
        return replace(
            answer,
            admitted=tuple(
                replace(grant, blocks=np.arange(len(grant.blocks), dtype=np.int32))
                for grant in answer.admitted
            ),
        )


class Miscounting(Altered):
    def change(self, answer):
        return replace(answer, grown_counts=answer.grown_counts + 1)


class Timid(Altered):
    def change(self, answer):
        return replace(answer, admitted=answer.admitted[:1])


class Greedy(BlockManager):
    @receives
    def assign(self, request: Assign) -> None:
        super().assign(replace(request, admission_tokens=request.admission_tokens + 7))


class Leaky(BlockManager):
    @receives
    def assign(self, request: Assign) -> None:
        super().assign(replace(request, freed=request.freed[1:].copy()))


class AnyEpoch(BlockManager):
    @receives
    def assign(self, request: Assign) -> None:
        if self._allocation is not None:
            self.tell(self.sender, self._allocation.assign(request))


class Faithful(BlockManager):
    """Never frees the blocks of a dead scheduler."""

    @receives
    def scheduler_down(self, event: ActorDown) -> None:
        """Do nothing."""

    def _follow(self, incarnation):
        self._scheduler = incarnation


class Trusting(BlockManager):
    """Believes that a dead scheduler's last step was computed."""

    class Pool(BlockPool):
        def forget(self, blocks):
            """Forget nothing."""

    pool_class = Pool


class Nostalgic(BlockManager):
    """Keeps the pool of a dead executor."""

    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        kept = self._allocation
        super().executor_ready(event)
        if kept is not None:
            kept.release_all()
            self._allocation = kept


class _EarlyLearning(Learning):
    def nameable(self, sequence):
        granted = sequence.granted
        self._columns.granted[sequence.slot] = len(sequence.blocks) * self._block_size
        found = super().nameable(sequence)
        self._columns.granted[sequence.slot] = granted
        return found


class _Early(Allocation):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._learning = _EarlyLearning(self._columns, self._prefixes, self._sequences)


class Early(BlockManager):
    """Names blocks before they are granted to be computed."""

    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        super().executor_ready(event)
        self._allocation = _Early(self._allocation.pool, event.block_size)


class Blurred(BlockManager):
    """Mistakes prefixes of different hashes for one another."""

    class Pool(BlockPool):
        def name(self, blocks, names):
            return super().name(blocks, [name[:1].ljust(len(name)) for name in names])

        def match(self, names):
            return super().match(name[:1].ljust(len(name)) for name in names)

    pool_class = Pool


class Shy(BlockManager):
    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        self._epoch = event.epoch
        self._allocation = Allocation(BlockPool(event.num_blocks), event.block_size)


class OfTiers(BlockManager):
    """A block manager with tiers of another class."""

    tiers_class = Tiers

    def __init_subclass__(cls) -> None:
        replaced = {name for name in vars(cls.tiers_class) if not name.startswith("__")}
        assert replaced <= set(dir(Tiers)), "what a faulty class replaces is there to replace"

    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        super().executor_ready(event)
        if self._allocation.tiers is not None:
            self._allocation.tiers.__class__ = self.tiers_class


class Credulous(OfTiers):
    """Believes that the moves of a dead scheduler's last step were made."""

    class tiers_class(Tiers):
        def forget_uncommitted(self):
            """Forget nothing."""


class Tardy(OfTiers):
    """Saves blocks beside the step that overwrites them."""

    class tiers_class(Tiers):
        def end(self, granted):
            moves = super().end(granted)
            return moves and replace(moves, num_urgent=0)


class Hasty(OfTiers):
    """Moves with steps that are never computed."""

    class tiers_class(Tiers):
        def end(self, granted):
            return super().end(True)


class Careless(OfTiers):
    """Writes to the slots that it reads."""

    class tiers_class(Tiers):
        def find(self, names):
            slots = super().find(names)
            self.host.unpin()
            return slots


class Meeting(OfTiers):
    """Restores into blocks that the step copies from."""

    def tell(self, address, message):
        if isinstance(message, Assigned) and message.moves and len(message.copy_sources):
            moves = replace(
                message.moves,
                restore_blocks=message.copy_sources[:1].copy(),
                restore_slots=message.moves.save_slots[:1].copy(),
            )
            message = replace(message, moves=moves)
        super().tell(address, message)


class Shortsighted(BlockManager):
    """Frees blocks that a window still reaches."""

    @receives
    def executor_ready(self, event: ExecutorReady) -> None:
        halved = tuple(window and window // 2 for window in event.windows)
        super().executor_ready(replace(event, windows=halved))


class Crashing(BlockManager):
    @receives
    def assign(self, request: Assign) -> None:
        raise RuntimeError("out of cheese")
