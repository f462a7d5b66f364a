"""What one exchange moves between the device and the tier below it.

A cached block that is about to be somebody else's is saved first, urgently: its step waits for that. So that
few are, the blocks next in line to be evicted are saved ahead of time, beside a step that computes: `dirty` ones
are free, cached, and nowhere but on the device, and as long as fewer than `RESERVE` blocks can be had without a
save, some of them are saved with each exchange, those that became free first. What has been saved stays there
when it is restored, so that nothing is saved twice.

To write everything down as soon as it is computed was turned down: most of it never leaves a device with room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from pageant.actors.blocks.costs import Costs
from pageant.actors.blocks.hashing import block_name
from pageant.actors.blocks.host import HostTier
from pageant.actors.blocks.pool import BlockPool
from pageant.protocol.arrays import int32
from pageant.protocol.tiers import BlockMoves, TierStatistics

RESERVE = 256  # blocks, or a quarter of the pool, that can be had without a save
AHEAD_MAX = 16  # blocks saved ahead with one exchange
TOKEN_BYTES = 4


class Tiers:
    """The host tier of one pool, and the moves of the exchange at hand."""

    def __init__(self, pool: BlockPool, host: HostTier, costs: Costs, block_size: int) -> None:
        self.pool, self.host, self.costs = pool, host, costs
        self._block_size = block_size
        self._reserve = min(RESERVE, pool.num_blocks // 4)
        self._dirty: OrderedDict[int, bytes] = OrderedDict()  # in the order in which they became free
        self._saves: list[tuple[int, int]] = []  # urgent ones: block, slot
        self._restores: list[tuple[int, int]] = []  # slot, block
        self._unsure: list[tuple[int, bytes]] = []  # saved by steps that may not have been computed
        self._step = 0
        self._saved = self._restored = self._tokens_hit = 0
        pool.on_evicted = self._evicted

    def begin(self, step: int, computed_step: int) -> None:
        """An exchange begins."""
        self._step = step
        if self._unsure:
            self._unsure = [entry for entry in self._unsure if entry[0] > computed_step]

    def freed(self, blocks: Iterable[tuple[int, bytes]]) -> None:
        """A sequence gave up these blocks, named so; its last ones come first."""
        for block, name in blocks:
            if name not in self.host:
                self._dirty[block] = name
                self._dirty.move_to_end(block)

    def _evicted(self, block: int, name: bytes) -> None:
        """A cached block is somebody else's from this step on."""
        self._dirty.pop(block, None)
        if name not in self.host and self.costs.move_pays(self._block_size, 2):
            self._save(block, name, self._saves)

    def _save(self, block: int, name: bytes, saves: list[tuple[int, int]]) -> None:
        slot = self.host.put(name)
        if slot is not None:
            saves.append((block, slot))
            self._unsure.append((self._step, name))

    def __contains__(self, name: bytes) -> bool:
        """Whether a block of that name is worth restoring."""
        return name in self.host and self.costs.move_pays(self._block_size)

    def find(self, names: Iterable[bytes]) -> list[int]:
        """The slots of the longest prefix of `names` that is worth restoring. They keep it for this exchange."""
        slots: list[int] = []
        if self.costs.move_pays(self._block_size):
            for name in names:
                slot = self.host.pin(name)
                if slot is None:
                    break
                slots.append(slot)
        return slots

    def find_partial(self, parent: bytes, wanted: bytes, more_than: int) -> tuple[int, int] | None:
        """The slot of a partly filled block that follows `parent` and holds the first of the tokens `wanted`,
        more of them than `more_than`, and nothing else; and how many."""
        for count in range(len(wanted) // TOKEN_BYTES, more_than, -1):
            if not self.costs.move_pays(count - more_than):
                break
            slot = self.host.pin(block_name(parent, wanted[: TOKEN_BYTES * count]))
            if slot is not None:
                return slot, count
        return None

    def restore(self, slots: Iterable[int], blocks: Iterable[int], num_tokens: int) -> None:
        """What these slots hold, so many tokens, goes into these blocks before the step computes."""
        self._restores += zip(slots, blocks, strict=True)
        self._tokens_hit += num_tokens

    def end(self, granted: bool) -> BlockMoves | None:
        """The exchange ends. Where nothing is `granted` there is no plan to bring moves along."""
        ahead = self._save_ahead() if granted else []
        self.host.unpin()
        urgent, restores = self._saves, self._restores
        if not (urgent or ahead or restores):
            return None
        if not granted:
            assert not restores, "what is restored is restored for somebody"
            self._forget_saves()
            return None
        self._saves, self._restores = [], []
        saves = [*urgent, *ahead]
        self._saved += len(saves)
        self._restored += len(restores)
        return BlockMoves(
            save_blocks=int32([block for block, _ in saves]),
            save_slots=int32([slot for _, slot in saves]),
            num_urgent=len(urgent),
            restore_slots=int32([slot for slot, _ in restores]),
            restore_blocks=int32([block for _, block in restores]),
        )

    def _save_ahead(self) -> list[tuple[int, int]]:
        saves: list[tuple[int, int]] = []
        pool = self.pool
        while self._dirty and len(saves) < AHEAD_MAX and pool.num_free - len(self._dirty) < self._reserve:
            block, name = self._dirty.popitem(last=False)
            cached = pool.references(block) == 0 and pool.name_of(block) == name
            if cached and name not in self.host and self.costs.move_pays(self._block_size):
                self._save(block, name, saves)
        return saves

    def _forget_saves(self) -> None:
        """An admission was refused only after blocks had been taken for it: they will not be saved."""
        for _, name in self._unsure[len(self._unsure) - len(self._saves) :]:
            self.host.forget(name)
        del self._unsure[len(self._unsure) - len(self._saves) :]
        self._saves = []

    def forget_unsure(self) -> None:
        """The scheduler is gone, and its last steps may never be computed, nor anything moved with them."""
        for _, name in self._unsure:
            self.host.forget(name)
        self._unsure.clear()

    def statistics(self) -> tuple[TierStatistics, ...]:
        """How each tier stands."""
        host = TierStatistics(
            name="host",
            num_blocks=self.host.num_slots,
            blocks_used=len(self.host),
            blocks_saved=self._saved,
            blocks_restored=self._restored,
            blocks_lost=self.host.lost,
            tokens_hit=self._tokens_hit,
        )
        return (host,)
