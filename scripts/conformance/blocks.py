"""The rules between scheduler and block manager (`protocol/allocation`), for any class of the role `blocks`.

A scheduler that asks at random for what a real one would ask for; the memory is shadowed, slot by slot, so
that a table that leads to somebody else's content is found whatever the reason.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pageant.actors.runtime import Actor
from pageant.protocol.allocation import Admission, Admitted, Assign, Assigned, GetPoolStatistics, PoolReady
from pageant.protocol.arrays import int32, int64
from pageant.protocol.roles import BLOCKS, Feature
from pageant.protocol.stepping import ExecutorReady
from pageant.protocol.tiers import DISK, BlockMoves, Moved, MoveTimes
from pageant.scripts.conformance.rules import Rules
from pageant.scripts.conformance.shadow import ShadowMemory
from pageant.scripts.conformance.stage import Stage

INTRODUCES = "it says PoolReady to the scheduler, of the executor's epoch, whenever either comes up"
ANSWERS = "every Assign is answered by one Assigned of the same step and epoch"
FOREIGN = "an Assign about another epoch, or for another manager, is answered with everything refused"
PREFIX = "grants are given in the order asked; from the first refusal on, all is refused"
COLUMNS = "grown_counts has an entry for each sequence that grew, and grown_blocks as many as they say"
SLOTS = "a granted sequence has slots for all its tokens up to the end of this step's"
POOL = "blocks are those of the pool, 0 to num_blocks - 1"
ALONE = "a block that a sequence writes to belongs to no other sequence"
CONTENT = (
    "what is said to be cached was computed, for the very same tokens from the first on, "
    "with the same salt, keys and adapter"
)
COPIES = "copy_sources and copy_destinations are as long, and of the destinations none comes twice"
MOVES = (
    "moves come with what is granted, each of a block and a slot that there are, urgent and needed ones first"
)
SAVED = "what is saved is cached, and urgently if its block is written to by the same step"
APART = "no block that is restored is copied from by the same plan"
REACH = "only what no window reaches is given back, and no more blocks are free than that leaves"
LOGITS = "the last token of an admission is computed again, for its logits"
BUDGET = "admissions together compute at most admission_tokens tokens, and each at least one"
FULL_CHUNK = "an admission computes all its uncomputed tokens, or what is left of the budget"
ROOM = "what fits into the free blocks is granted"
ALL_OR_NOTHING = "an admission is granted only if the pool has room for all of its tokens"
FREES = "what is freed can be had again: with nothing held, all blocks are free"
COUNTS = "blocks_free and num_blocks of an Assigned, and PoolStatistics, say how the pool stands"
NEW_SCHEDULER = "what a dead scheduler held is free"
UNCOMPUTED = "what a dead scheduler was granted last may not be computed, and is not matched"
NEW_EPOCH = "the memory of a new epoch is empty"

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
    rules.must("it takes the role of blocks", cls.role is BLOCKS, f"its role is {cls.role!r}")
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


@dataclass(eq=False)
class _Held:
    """A sequence that runs."""

    tokens: list[int]
    blocks: list[int]
    computed: int  # tokens whose KV is there, and right, once the last exchange's step is computed
    start: int = 0  # the first token that was to be computed when it was last asked for
    fresh: list[int] = field(default_factory=list)  # drawn since the last exchange
    guesses: list[int] = field(default_factory=list)  # of what comes next, computed besides


class _Trial:
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
        self._cls, self._options, self._rules = cls, options, rules
        self._random = random.Random(seed)
        self.num_blocks, self.size, self.num_slots = num_blocks, block_size, slots
        self.windows = windows
        self.longest = num_blocks // len(windows) * block_size  # tokens of one sequence
        self.stage = Stage()
        self._step = self._serial = 0
        self._epoch = 1
        self._held: dict[int, _Held] = {}
        self._freed: list[int] = []
        # What sequences share KV by, besides their tokens. A class that knows no adapters is asked for none.
        self._spaces = [
            space for space in SPACES if "adapter" not in space or Feature.ADAPTERS in cls.features
        ]
        self._memory = ShadowMemory(num_blocks, block_size)  # of what space, group and prefix its KV is
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
            self._epoch, self._memory = 2, ShadowMemory(self.num_blocks, self.size)
            await self._introduce()
            answer = await self._ask({}, {}, [prompt], 10**6, NEW_EPOCH)
            self._must(NEW_EPOCH, len(answer.admitted) == 1, "an admission into it was refused")
            for _ in range(20):
                await self._exchange()

    async def _free_all(self) -> None:
        self._freed += list(self._held)
        self._held.clear()
        await self._exchange(idle=True, counts=FREES)
        await self._check_all_free(FREES)

    async def _introduce(self) -> None:
        """The executor of a new epoch says what memory there is."""
        self._held.clear()
        self._freed.clear()
        self.stage.tell(EXECUTOR, "blocks", self._ready())
        ready = await self.stage.expect(SCHEDULER, PoolReady, INTRODUCES)
        self._must(INTRODUCES, ready.epoch == self._epoch, f"epoch {ready.epoch}, not {self._epoch}")

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

    def _must(self, rule: str, kept: bool, detail: str) -> None:
        self._rules.must(rule, kept, f"{detail} (exchange {self._step})")

    # One exchange, as a scheduler asks.

    async def _exchange(self, idle: bool = False, counts: str = COUNTS) -> None:
        """What a scheduler may ask for, or nothing but frees. `counts` is the rule for the free count."""
        chance = self._random
        for serial in list(self._held):
            if chance.random() < 0.12:
                self._freed.append(serial)
                del self._held[serial]
        growing = {} if idle else {s: held for s, held in self._held.items() if chance.random() < 0.9}
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
        growing: dict[int, _Held],
        lengths: dict[int, int],
        waiting: list[list[int]],
        budget: int,
        uncached: str | None = None,
        counts: str = COUNTS,
    ) -> Assigned:
        """One exchange. Of what is admitted, nothing may be cached by the rule `uncached`."""
        self._step += 1
        admissions = {self._serial + 1 + index: tokens for index, tokens in enumerate(waiting)}
        self._serial += len(waiting)
        freed, self._freed = self._freed, []
        request = Assign(
            step=self._step,
            epoch=self._epoch,
            computed_step=self._step - 1,
            learned_serials=int64(list(growing)),
            learned_counts=int32([len(held.fresh) for held in growing.values()]),
            token_ids=int32([token for held in growing.values() for token in held.fresh]),
            freed=int64(freed),
            grow_serials=int64(list(growing)),
            grow_lengths=int32([lengths[serial] + len(held.guesses) for serial, held in growing.items()]),
            grow_drafts=int32([len(held.guesses) for held in growing.values()]),
            admissions=tuple(
                Admission(serial=serial, token_ids=int32(tokens), **self._spaces[self._space(serial)])
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
        self._must(ANSWERS, got == (self._step, self._epoch), f"(step, epoch) is {got}")
        cached = [grant.num_cached_tokens for grant in answer.admitted]
        if uncached is not None:
            self._must(uncached, not any(cached), f"{sum(cached)} tokens are said to be cached")
        written = self._check_growth(answer, growing, lengths)
        written += self._check_admissions(answer, admissions, budget, len(growing))
        for serial, _, end in written:
            self._check_slots(serial, end)
        self._check_alone(written)
        if answer.moves is not None:
            self._check_moves(answer, answer.moves, written)
            self._memory.move_before(answer.moves)
        self._copy(answer)
        self._compute(written)
        if answer.moves is not None:
            self._memory.move_beside(answer.moves)
        self._check_count(answer, counts)
        return answer

    def _tell_times(self) -> None:
        """What steps and moves took, so that now this pays and now that."""
        if self._options.get("disk_space") and self._step % 3 == 0:
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

    def _check_growth(
        self, answer: Assigned, growing: dict[int, _Held], lengths: dict[int, int]
    ) -> list[tuple[int, int, int]]:
        """What grew, as (serial, from, to)."""
        counts, blocks = answer.grown_counts.tolist(), answer.grown_blocks.tolist()
        self._must(PREFIX, answer.num_grown <= len(growing), f"{answer.num_grown} of {len(growing)} grew")
        fits = len(counts) == answer.num_grown and sum(counts) == len(blocks)
        self._must(COLUMNS, fits, f"{answer.num_grown} grew, by {counts}, with {len(blocks)} blocks")
        written, position = [], 0
        for serial, count in zip(growing, counts, strict=False):
            held = growing[serial]
            held.blocks += blocks[position : position + count]
            position += count
            written.append((serial, held.computed, lengths[serial] + len(held.guesses)))
            held.computed = lengths[serial]
        if answer.num_grown < len(growing):
            serial = list(growing)[answer.num_grown]
            length = lengths[serial] + len(growing[serial].guesses)
            wanted = self._blocks_for(length) - len(growing[serial].blocks)
            free = self.num_blocks - self._num_held_most()
            self._must(ROOM, wanted > free, f"growth by {wanted} was refused with {free} blocks free")
        return written

    def _check_admissions(
        self, answer: Assigned, admissions: dict[int, list[int]], budget: int, num_growing: int
    ) -> list[tuple[int, int, int]]:
        granted = [grant.serial for grant in answer.admitted]
        in_order = granted == list(admissions)[: len(granted)]
        self._must(PREFIX, in_order, f"{granted} were admitted of {list(admissions)}")
        if answer.num_grown < num_growing:
            self._must(PREFIX, not granted, f"{granted} were admitted though growth was refused")
        written, left = [], budget
        for grant in answer.admitted:
            written.append(self._check_grant(grant, admissions[grant.serial], left))
            left -= grant.num_tokens
        if answer.num_grown == num_growing and len(granted) < len(admissions) and left > 0:
            tokens = list(admissions.values())[len(granted)]
            free = self.num_blocks - self._num_held_most()
            wanted = self._blocks_for(len(tokens))
            comes = answer.moves is not None and len(answer.moves.restore_blocks) > answer.moves.num_needed
            self._must(ROOM, wanted > free or comes, f"{wanted} blocks were refused with {free} free")
        return written

    def _check_grant(self, grant: Admitted, tokens: list[int], left: int) -> tuple[int, int, int]:
        blocks, cached = grant.blocks.tolist(), grant.num_cached_tokens
        who = f"sequence {grant.serial} of {len(tokens)} tokens, {cached} of them cached"
        self._must(LOGITS, 0 <= cached < len(tokens), who)
        self._must(BUDGET, 1 <= grant.num_tokens <= left, f"{grant.num_tokens} tokens of {left} left; {who}")
        chunk = min(len(tokens) - cached, left)
        self._must(
            FULL_CHUNK, grant.num_tokens == chunk, f"{grant.num_tokens} tokens instead of {chunk}; {who}"
        )
        before = self._num_held()
        self._held[grant.serial] = _Held(tokens, blocks, cached + grant.num_tokens, cached)
        rest = self._blocks_for(len(tokens)) - len(blocks)
        free = self.num_blocks - self._num_held()
        self._must(ALL_OR_NOTHING, rest <= free, f"{rest} more blocks are needed, {free} free; {before} held")
        return grant.serial, cached, cached + grant.num_tokens

    def _check_slots(self, serial: int, end: int) -> None:
        held = self._held[serial]
        wrong = [block for block in held.blocks if not 0 <= block < self.num_blocks]
        self._must(POOL, not wrong, f"sequence {serial} has the blocks {wrong} of {self.num_blocks}")
        slots = len(held.blocks) // len(self.windows) * self.size
        self._must(SLOTS, slots >= end, f"sequence {serial} has {slots} slots for {end} tokens")
        reached = self._reached(held)
        distinct = len(set(reached)) == len(reached)
        self._must(ALONE, distinct, f"sequence {serial} has a block twice: {reached}")

    def _check_alone(self, written: list[tuple[int, int, int]]) -> None:
        """A block that is full after this step may be matched in the very same exchange; no other may."""
        writers: dict[int, int] = {}
        for serial, start, end in written:
            for block in self._written(serial, start, end):
                other = writers.setdefault(block, serial)
                self._must(ALONE, other == serial, f"sequences {serial} and {other} both write block {block}")
            partial = set(self._written(serial, end, end))
            sharers = [
                s
                for s, held in self._held.items()
                if s != serial and not partial.isdisjoint(self._reached(held))
            ]
            self._must(ALONE, not sharers, f"sequences {sharers} have one of {partial}, which {serial} fills")

    def _check_moves(self, answer: Assigned, moves: BlockMoves, written: list[tuple[int, int, int]]) -> None:
        saved, slots, urgent = moves.save_blocks.tolist(), moves.save_slots.tolist(), moves.num_urgent
        restored, read = moves.restore_blocks.tolist(), moves.restore_slots.tolist()
        fine = len(saved) == len(slots) >= urgent >= 0 and len(restored) == len(read) == len(set(restored))
        fine = fine and all(0 <= block < self.num_blocks for block in (*saved, *restored))
        spilled, to = moves.spill_slots.tolist(), moves.spill_to.tolist()
        fine = fine and 0 <= moves.num_needed <= len(read) and len(spilled) == len(to)
        fine = fine and all(0 <= slot < self.num_slots for slot in (*slots, *spilled))
        fine = fine and all(0 <= slot < self.num_slots or slot >= DISK for slot in read)
        fine = fine and all(slot >= DISK for slot in to)
        granted = bool(answer.num_grown or answer.admitted)
        self._must(MOVES, fine and granted, f"{moves!r} of {self.num_blocks} blocks, {self.num_slots} slots")
        self._must(APART, set(restored).isdisjoint(answer.copy_sources.tolist()), f"{answer!r}")
        changed = {*restored, *answer.copy_destinations.tolist()}
        for serial, start, end in written:
            changed.update(self._written(serial, start, end))
        beside = restored[moves.num_needed :]
        used = {block for held in self._held.values() for block in self._reached(held)}
        self._must(APART, used.isdisjoint(beside), f"{beside} are restored beside a step that uses them")
        late = set(saved[urgent:]) & changed
        self._must(SAVED, not late, f"blocks {late} are saved beside the step that writes to them")
        blank = [block for block in saved if self._memory.blocks[block][0] is None]
        self._must(SAVED, not blank, f"blocks {blank} are saved, in which nothing has been computed")

    def _copy(self, answer: Assigned) -> None:
        """Before the step: all is read, then all is written."""
        sources, destinations = answer.copy_sources.tolist(), answer.copy_destinations.tolist()
        fine = len(sources) == len(destinations) == len(set(destinations))
        self._must(COPIES, fine, f"{sources} are copied to {destinations}")
        blocks = [*sources, *destinations]
        self._must(POOL, all(0 <= block < self.num_blocks for block in blocks), f"{blocks} are copied")
        self._memory.copy(sources, destinations)

    def _compute(self, written: list[tuple[int, int, int]]) -> None:
        """The step: all is written, then all is read."""
        for serial, start, end in written:
            held = self._held[serial]
            tokens = [*held.tokens[: held.computed], *held.guesses]
            for group in range(len(self.windows)):
                for at in range(start, end):
                    self._block(held, at, group)[at % self.size] = self._right(
                        serial, group, tokens[: at + 1]
                    )
        for serial, start, end in written:
            held = self._held[serial]
            tokens = [*held.tokens[: held.computed], *held.guesses]
            for group, window in enumerate(self.windows):
                for at in range(0 if window is None else max(0, start + 1 - window), end):
                    found = self._block(held, at, group)[at % self.size]
                    right = found == self._right(serial, group, tokens[: at + 1])
                    self._must(CONTENT, right, f"sequence {serial} reads other content at position {at}")

    def _right(self, serial: int, group: int, tokens: list[int]) -> tuple[int, ...]:
        """What the last of these tokens leaves in the layers of a group."""
        return self._space(serial), group, *tokens

    def _space(self, serial: int) -> int:
        """Of which of the spaces a sequence's KV is: of the first that is like its own."""
        return self._spaces.index(self._spaces[serial % len(self._spaces)])

    def _block(self, held: _Held, at: int, group: int) -> list[Any]:
        """What the block holds that a sequence's token is in."""
        return self._memory.blocks[held.blocks[at // self.size * len(self.windows) + group]]

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.size) * len(self.windows)

    def _written(self, serial: int, start: int, end: int) -> list[int]:
        """The blocks of a sequence that hold its tokens from `start` to `end`."""
        first = start // self.size * len(self.windows)
        return self._held[serial].blocks[first : self._blocks_for(end)]

    def _reached(self, held: _Held) -> list[int]:
        """The blocks of a sequence that its last step's windows reach."""
        reached = []
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(0, held.start + 1 - window) // self.size
            reached += held.blocks[group :: len(self.windows)][first:]
        return reached

    def _num_held(self) -> int:
        return len({block for held in self._held.values() for block in self._reached(held)})

    def _num_held_most(self) -> int:
        """With what was reached once, and may not have been given back yet."""
        return len({block for held in self._held.values() for block in held.blocks})

    def _check_count(self, answer: Assigned, rule: str) -> None:
        free, least = (self.num_blocks - count for count in (self._num_held(), self._num_held_most()))
        right = least <= answer.blocks_free <= free and answer.num_blocks == self.num_blocks
        told = f"{answer.blocks_free} of {answer.num_blocks} are said to be free; {free} are"
        if self.windows != (None,):
            self._must(REACH, answer.blocks_free <= free, told)
        self._must(rule, right, told)

    # What happens now and then.

    async def _check_foreign(self) -> None:
        """About another epoch's memory, or meant for another manager."""
        await self._ask_foreign(self._epoch + 1, 0)
        await self._ask_foreign(self._epoch, 10**6)

    async def _ask_foreign(self, epoch: int, manager: int) -> None:
        self._step += 1
        request = Assign(
            step=self._step,
            epoch=epoch,
            computed_step=self._step - 1,
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
        refused = answer.step == self._step and not answer.num_grown and not answer.admitted
        self._must(FOREIGN, refused, f"answered with {answer!r}")

    async def _lose_scheduler(self) -> None:
        """It dies after an exchange whose step is never computed; the next one starts from nothing."""
        self._freed += list(self._held)
        self._held.clear()
        before = self._memory.snapshot()
        prompt = [VOCABULARY] * self.longest  # never seen before
        await self._ask({}, {}, [prompt], 10**4)
        self._memory = before
        self._held.clear()
        await self.stage.leave(SCHEDULER)
        await self.stage.enter(SCHEDULER)
        ready = await self.stage.expect(SCHEDULER, PoolReady, INTRODUCES)
        self._must(INTRODUCES, ready.epoch == self._epoch, f"epoch {ready.epoch}, not {self._epoch}")
        await self._exchange(idle=True, counts=NEW_SCHEDULER)
        await self._check_all_free(NEW_SCHEDULER)
        await self._ask({}, {}, [prompt], 0)
        answer = await self._ask({}, {}, [prompt], 10**4, UNCOMPUTED)
        self._must(ROOM, len(answer.admitted) == 1, "an admission into an empty pool was refused")
        for prompt in self._prompts:  # what that step was to move away is not where it would be
            await self._free_all()
            await self._ask({}, {}, [prompt[: self.longest]], 10**4)

    async def _check_all_free(self, rule: str) -> None:
        statistics = await self.stage.ask("blocks", GetPoolStatistics())
        free = (statistics.blocks_free, statistics.blocks_held) == (self.num_blocks, 0)
        self._must(rule, free, f"nothing is held, but the pool stands so: {statistics!r}")
        cached = 0 <= statistics.blocks_cached <= statistics.blocks_free
        self._must(COUNTS, cached and statistics.num_blocks == self.num_blocks, f"{statistics!r}")

    async def _check_whole_pool(self) -> list[int]:
        """One sequence may have it all."""
        longest = self.longest
        prompt = [self._random.randrange(VOCABULARY) for _ in range(longest)]
        answer = await self._ask({}, {}, [prompt], 10**6)
        self._must(ROOM, len(answer.admitted) == 1, f"{longest} tokens do not fit into the empty pool")
        return prompt
