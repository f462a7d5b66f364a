"""The rules between scheduler and block manager (`protocol/allocation`), for any class of the role `blocks`.

A scheduler that asks at random for what a real one would ask for; the memory is shadowed, slot by slot, so
that a table that leads to somebody else's content is found whatever the reason.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np

from pageant.actors.runtime import Actor
from pageant.protocol.allocation import Admission, Assign, Assigned, GetPoolStatistics, PoolReady
from pageant.protocol.arrays import int32, int64
from pageant.protocol.roles import BLOCKS, Feature
from pageant.protocol.stepping import ExecutorReady
from pageant.protocol.tiers import Moved, MoveTimes
from pageant.scripts.conformance.block_rules import (
    ANSWERS,
    COUNTS,
    FOREIGN,
    FREES,
    INTRODUCES,
    NEW_EPOCH,
    NEW_SCHEDULER,
    ROOM,
    UNCOMPUTED,
)
from pageant.scripts.conformance.rules import Rules, explain_role
from pageant.scripts.conformance.shadow import ShadowMemory
from pageant.scripts.conformance.stage import Stage
from pageant.scripts.conformance.watched_pool import Held, WatchedPool

EXECUTOR, SCHEDULER = "executor/0", "scheduler"
VOCABULARY = 3  # small, so that prefixes meet
# As admissions say it; most are alike, so that there is something to share.
SPACES: tuple[dict[str, Any], ...] = (
    *({}, {}, {}, {"salt": "a"}, {}, {"adapter": "a"}),
    *({}, {"extra_keys": ("a",)}, {}, {"salt": "a", "adapter": "a"}),
)
BLOCK_BYTES = 64


def check_block_manager(cls: type[Actor], **options: Any) -> tuple[str, ...]:
    """Puts a block manager on trial; returns the rules that it kept.

    Args:
        options: of the actor.

    Raises:
        BrokenRule: names the rule, and what happened.
    """
    rules = Rules()
    rules.must("it takes the role of blocks", getattr(cls, "role", None) is BLOCKS, explain_role(cls, BLOCKS))
    for seed, (num_blocks, block_size) in enumerate(((12, 4), (40, 2), (7, 16), (64, 1))):
        asyncio.run(_Trial(cls, options, rules, seed, num_blocks, block_size).run())
    for seed, (num_blocks, block_size, windows) in enumerate(
        (
            *((14, 4, (9,)), (40, 2, (5,)), (7, 16, (17,)), (50, 1, (8,))),
            *((28, 4, (None, 9)), (90, 2, (None, 5, 5)), (60, 3, (None, None, 4)), (40, 2, (9, 4))),
        )
    ):
        asyncio.run(_Trial(cls, options, rules, seed, num_blocks, block_size, windows=windows).run())
    if "host_memory" in cls.Options.__struct_fields__ and options.get("enable_prefix_caching", True):
        for seed, (num_blocks, block_size, slots, disk) in enumerate(
            ((12, 4, 30, 0), (16, 2, 5, 0), (30, 3, 1000, 0), (12, 4, 8, 50), (20, 2, 5, 9))
        ):
            below = {**options, "host_memory": slots * BLOCK_BYTES}
            if disk and "disk_space" in cls.Options.__struct_fields__:
                below["disk_space"] = disk * BLOCK_BYTES
            for windows in ((None,), (2 * block_size + 1,), (None, 2 * block_size + 1)):
                blocks = num_blocks * len(windows)
                asyncio.run(_Trial(cls, below, rules, seed, blocks, block_size, slots, windows).run())
    return rules.kept


class _Trial(WatchedPool):
    """One pool, and a scheduler that keeps its side of the rules."""

    def __init__(
        self,
        cls: Any,
        options: Any,
        rules: Rules,
        seed: int,
        num_blocks: int,
        block_size: int,
        slots: int = 0,
        windows: tuple[int | None, ...] = (None,),
    ) -> None:
        # A class that knows no adapters is asked for none.
        spaces = [space for space in SPACES if "adapter" not in space or Feature.ADAPTERS in cls.features]
        super().__init__(rules, num_blocks, block_size, slots, windows, spaces)
        self._cls, self._options = cls, options
        self._random = random.Random(seed)
        self.stage = Stage()
        self._serial = 0
        self._epoch = 1
        self._freed: list[int] = []
        self._prompts = [[self._random.randrange(VOCABULARY) for _ in range(90)] for _ in range(3)]

    async def run(self) -> None:
        async with self.stage as stage:
            await stage.enter(SCHEDULER)
            await stage.enter("blocks", self._cls(self._cls.Options(**self._options)))
            await stage.enter(EXECUTOR)
            await self._introduce()
            for _ in range(60):
                await self._exchange()
            await self._check_foreign()
            await self._lose_scheduler()
            for _ in range(20):
                await self._exchange()
            await self._free_all()
            prompt = await self._check_whole_pool()
            await self._free_all()
            self._epoch, self.memory = 2, ShadowMemory(self.num_blocks, self.size)
            await self._introduce()
            answer = await self._ask({}, {}, [prompt], 10**6, NEW_EPOCH)
            self.must(NEW_EPOCH, len(answer.admitted) == 1, "an admission into it was refused")
            for _ in range(20):
                await self._exchange()

    async def _free_all(self) -> None:
        self._freed += list(self.held)
        self.held.clear()
        await self._exchange(idle=True, counts=FREES)
        await self._check_all_free(FREES)

    async def _introduce(self) -> None:
        """The executor of a new epoch says what memory there is."""
        self.held.clear()
        self._freed.clear()
        self.stage.tell(EXECUTOR, "blocks", self._ready())
        ready = await self.stage.expect(SCHEDULER, PoolReady, INTRODUCES)
        self.must(INTRODUCES, ready.epoch == self._epoch, f"epoch {ready.epoch}, not {self._epoch}")

    def _ready(self) -> ExecutorReady:
        return ExecutorReady(
            epoch=self._epoch,
            num_blocks=self.num_blocks,
            block_size=self.size,
            max_num_seqs=8,
            max_model_len=self.longest,
            device="none",
            dtype="none",
            block_bytes=BLOCK_BYTES,
            host_bytes=2**40,
            disk_bytes=2**40,
            windows=self.windows,
        )

    # One exchange, as a scheduler asks.

    async def _exchange(self, idle: bool = False, counts: str = COUNTS) -> None:
        """Ask as a scheduler may, or, when idle, with nothing but frees. `counts` is the rule for the free count."""
        chance = self._random
        for serial in list(self.held):
            if chance.random() < 0.12:
                self._freed.append(serial)
                del self.held[serial]
        growing = {} if idle else {s: held for s, held in self.held.items() if chance.random() < 0.9}
        longest = self.longest
        for held in growing.values():
            if held.computed == len(held.tokens) and len(held.tokens) < longest:
                right = held.guesses[: chance.randint(0, len(held.guesses))]
                held.computed += len(right)
                held.fresh = [*right, chance.randrange(VOCABULARY)]
                held.tokens += held.fresh
        growing = {serial: held for serial, held in growing.items() if held.computed < len(held.tokens)}
        lengths = {
            serial: min(len(held.tokens), held.computed + chance.choice([1, 1, 5]))
            for serial, held in growing.items()
        }
        for serial, held in growing.items():
            most = longest - len(held.tokens) - 1 if lengths[serial] == len(held.tokens) else 0
            held.guesses = [
                chance.randrange(VOCABULARY) for _ in range(min(most, chance.choice([0, 0, 0, 3])))
            ]
        waiting = [] if idle else [self._prompt() for _ in range(chance.choice([0, 0, 1, 2, 3]))]
        await self._ask(growing, lengths, waiting, chance.choice([0, 3, 20, 200]), counts=counts)

    def _prompt(self) -> list[int]:
        longest = self.longest
        prompt = self._random.choice(self._prompts)[: self._random.randint(1, min(60, longest))]
        if self._random.random() < 0.5:
            prompt = [*prompt, self._random.randrange(VOCABULARY)][-longest:]
        return list(prompt)

    async def _ask(
        self,
        growing: dict[int, Held],
        lengths: dict[int, int],
        waiting: list[list[int]],
        budget: int,
        uncached: str | None = None,
        counts: str = COUNTS,
    ) -> Assigned:
        """One exchange. Of what is admitted, nothing may be cached by the rule `uncached`."""
        self.step += 1
        admissions = {self._serial + 1 + index: tokens for index, tokens in enumerate(waiting)}
        self._serial += len(waiting)
        freed, self._freed = self._freed, []
        request = Assign(
            step=self.step,
            epoch=self._epoch,
            computed_step=self.step - 1,
            learned_serials=int64(list(growing)),
            learned_counts=int32([len(held.fresh) for held in growing.values()]),
            token_ids=int32([token for held in growing.values() for token in held.fresh]),
            freed=int64(freed),
            grow_serials=int64(list(growing)),
            grow_lengths=int32([lengths[serial] + len(held.guesses) for serial, held in growing.items()]),
            grow_drafts=int32([len(held.guesses) for held in growing.values()]),
            admissions=tuple(
                Admission(serial=serial, token_ids=int32(tokens), **self.spaces[self.space_of(serial)])
                for serial, tokens in admissions.items()
            ),
            admission_tokens=budget,
        )
        for held in growing.values():
            held.fresh, held.start = [], held.computed
        self.stage.tell(SCHEDULER, "blocks", request)
        answer = await self.stage.expect(SCHEDULER, Assigned, ANSWERS)
        await self.stage.quiet(SCHEDULER, ANSWERS)
        self._tell_times()
        got = (answer.step, answer.epoch)
        self.must(ANSWERS, got == (self.step, self._epoch), f"(step, epoch) is {got}")
        cached = [grant.num_cached_tokens for grant in answer.admitted]
        if uncached is not None:
            self.must(uncached, not any(cached), f"{sum(cached)} tokens are said to be cached")
        written = self.check_growth(answer, growing, lengths)
        written += self.check_admissions(answer, admissions, budget, len(growing))
        for serial, _, end in written:
            self.check_slots(serial, end)
        self.check_alone(written)
        if answer.moves is not None:
            self.check_moves(answer, answer.moves, written)
            self.memory.move_before(answer.moves)
        self.copy(answer)
        self.compute(written)
        if answer.moves is not None:
            self.memory.move_beside(answer.moves)
        self.check_count(answer, counts)
        return answer

    def _tell_times(self) -> None:
        """Report what steps and moves took, so that now this pays and now that."""
        if self._options.get("disk_space") and self.step % 3 == 0:
            chance = self._random
            host, written, read = (Moved(blocks=1, seconds=chance.uniform(0, 3)) for _ in range(3))
            self.stage.tell(
                EXECUTOR,
                "blocks",
                MoveTimes(
                    epoch=self._epoch,
                    step_tokens=int32([1, 2]),
                    step_seconds=np.array([1.0, chance.uniform(1, 2)], np.float32),
                    host=host,
                    written=written,
                    read=read,
                ),
            )

    # What happens now and then.

    async def _check_foreign(self) -> None:
        """Send messages about another epoch's memory, or meant for another manager."""
        await self._ask_foreign(self._epoch + 1, 0)
        await self._ask_foreign(self._epoch, 10**6)

    async def _ask_foreign(self, epoch: int, manager: int) -> None:
        self.step += 1
        request = Assign(
            step=self.step,
            epoch=epoch,
            computed_step=self.step - 1,
            learned_serials=int64(),
            learned_counts=int32(),
            token_ids=int32(),
            freed=int64(),
            grow_serials=int64(),
            grow_lengths=int32(),
            admissions=(Admission(serial=10**6, token_ids=int32([1])),),
            admission_tokens=10,
            manager=manager,
        )
        self.stage.tell(SCHEDULER, "blocks", request)
        answer = await self.stage.expect(SCHEDULER, Assigned, FOREIGN)
        refused = answer.step == self.step and not answer.num_grown and not answer.admitted
        self.must(FOREIGN, refused, f"answered with {answer!r}")

    async def _lose_scheduler(self) -> None:
        """Kill the scheduler after an exchange whose step is never computed; the next one starts from nothing."""
        self._freed += list(self.held)
        self.held.clear()
        before = self.memory.snapshot()
        prompt = [VOCABULARY] * self.longest  # never seen before
        await self._ask({}, {}, [prompt], 10**4)
        self.memory = before
        self.held.clear()
        await self.stage.leave(SCHEDULER)
        await self.stage.enter(SCHEDULER)
        ready = await self.stage.expect(SCHEDULER, PoolReady, INTRODUCES)
        self.must(INTRODUCES, ready.epoch == self._epoch, f"epoch {ready.epoch}, not {self._epoch}")
        await self._exchange(idle=True, counts=NEW_SCHEDULER)
        await self._check_all_free(NEW_SCHEDULER)
        await self._ask({}, {}, [prompt], 0)
        answer = await self._ask({}, {}, [prompt], 10**4, UNCOMPUTED)
        self.must(ROOM, len(answer.admitted) == 1, "an admission into an empty pool was refused")
        for prompt in self._prompts:  # what that step was to move away is not where it would be
            await self._free_all()
            await self._ask({}, {}, [prompt[: self.longest]], 10**4)

    async def _check_all_free(self, rule: str) -> None:
        statistics = await self.stage.ask("blocks", GetPoolStatistics())
        free = (statistics.blocks_free, statistics.blocks_held) == (self.num_blocks, 0)
        self.must(rule, free, f"nothing is held, but the pool stands so: {statistics!r}")
        cached = 0 <= statistics.blocks_cached <= statistics.blocks_free
        self.must(COUNTS, cached and statistics.num_blocks == self.num_blocks, f"{statistics!r}")

    async def _check_whole_pool(self) -> list[int]:
        """One sequence may have it all."""
        longest = self.longest
        prompt = [self._random.randrange(VOCABULARY) for _ in range(longest)]
        answer = await self._ask({}, {}, [prompt], 10**6)
        self.must(ROOM, len(answer.admitted) == 1, f"{longest} tokens do not fit into the empty pool")
        return prompt
