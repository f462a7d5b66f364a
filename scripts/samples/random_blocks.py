"""Operations at random on the block manager's core, over a memory in which every slot says what it holds.

Sequences are admitted, grow, guess, end, and lose their scheduler, on a device with or without windows, of all layers
or of some, with or without tiers below it. What is said to be cached is read, and must be there; what is given up must
be free.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.costs import TIER_MOVES, MoveCosts
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.tiers import Tiers
from pageant.protocol.allocation import Admission, Assign, Assigned
from pageant.protocol.arrays import int32, int64
from pageant.protocol.tiers import BlockMoves, Moved
from pageant.scripts.conformance.shadow import ShadowMemory, first_read

VOCABULARY = 3  # so that prefixes meet
ROOT = 17
GUESSES_MAX = 3
CHUNK_MAX = 5  # by which those grow that are there


@dataclass(frozen=True)
class Shape:
    """Shape of a pool, and of the tiers below it."""

    num_blocks: int = 64
    block_size: int = 4
    windows: tuple[int | None, ...] = (None,)  # of each group of layers
    host_slots: int = 0
    disk_slots: int = 0

    @property
    def tokens(self) -> int:
        """Return the length of the longest sequence."""
        return self.num_blocks // len(self.windows) * self.block_size


SHAPES = (
    Shape(num_blocks=512),
    Shape(windows=(9,)),
    Shape(host_slots=100),
    Shape(num_blocks=40, block_size=3, host_slots=30, disk_slots=200),
    Shape(num_blocks=40, host_slots=20, disk_slots=30, windows=(10,)),
    Shape(num_blocks=100, block_size=1, host_slots=50, disk_slots=60),
    Shape(num_blocks=130, windows=(None, 9)),
    Shape(num_blocks=100, block_size=3, windows=(17, 8, 8), host_slots=60),
    Shape(num_blocks=160, windows=(None, None, 5), host_slots=50, disk_slots=90),
)


@dataclass(eq=False)
class _Held:
    tokens: list[int]
    chain: list[int]  # what the slot of each token is to hold
    blocks: list[int]
    computed: int
    start: int  # of what its last step computed
    guesses: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)


def _follow(chain: list[int], tokens: Sequence[int]) -> list[int]:
    """Return a chain with more tokens."""
    chain, last = list(chain), chain[-1] if chain else ROOT
    for token in tokens:
        last = hash((last, token))
        chain.append(last)
    return chain


class RandomBlocks:
    """Pool, its memory, and those who use it. `operations` are counted: admissions, growth and ends."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.shape, self.random = shape, random.Random(seed)
        pool = BlockPool(shape.num_blocks)
        self.tiers: Tiers | None = None
        if shape.host_slots:
            tokens = shape.block_size / len(shape.windows)
            self.tiers = Tiers(pool, MoveCosts(), tokens, shape.host_slots, shape.disk_slots)
        self.core = Allocation(pool, shape.block_size, self.tiers, shape.windows)
        self.held: dict[int, _Held] = {}
        self.operations = 0
        self.seen: Counter[str] = Counter()
        self._freed: list[int] = []
        self._step = self._serial = self._computed_step = 0
        self._memory = ShadowMemory(shape.num_blocks, shape.block_size)
        self._stems = [[self.random.randrange(VOCABULARY) for _ in range(60)] for _ in range(4)]

    # What happens.

    def run(self, operations: int) -> None:
        """Run so many operations, and then end all that is held."""
        chance, checked = self.random, 0
        while self.operations < operations:
            for serial in [serial for serial in self.held if chance.random() < 0.1]:
                self.end(serial)
            prompts = [self.prompt(chance.randint(1, 60)) for _ in range(chance.randint(0, 4))]
            some = [serial for serial in self.held if chance.random() < 0.9]
            self.exchange(some, prompts, chance.choice([3, 20, 200]), lost=chance.random() < 0.003)
            if chance.random() < 0.05:
                self.measure(*(chance.uniform(0, 3) for _ in range(4)))
            if self.operations > checked + 5000:
                self.check()
                checked = self.operations
        self.end_all()

    def prompt(self, length: int) -> list[int]:
        """Many begin alike."""
        stem = self.random.choice(self._stems)[:length]
        longest = self.shape.tokens
        return [*stem, self.random.randrange(VOCABULARY)][-longest:]

    def end(self, serial: int) -> None:
        """A sequence is given up with the next exchange."""
        del self.held[serial]
        self._freed.append(serial)
        self.operations += 1

    def measure(self, step: float, host: float, written: float, read: float) -> None:
        """Steps and moves have taken so long."""
        if self.tiers is not None:
            self.tiers.costs.stepped(self.shape.block_size, step)
            for way, seconds in zip(TIER_MOVES, (host, written, read), strict=True):
                self.tiers.costs.moved(way, Moved(blocks=1, seconds=seconds))

    def exchange(
        self, growing: Sequence[int], prompts: Sequence[list[int]], budget: int, *, lost: bool = False
    ) -> None:
        """Play a step: some grow, some are admitted. If it is `lost`, it is never computed, and nobody is left."""
        self._step += 1
        if self.random.random() < 0.7:
            self._computed_step = self._step - 1
        lengths = {serial: self._grow(self.held[serial]) for serial in growing}
        lengths = {
            serial: length for serial, length in lengths.items() if length > self.held[serial].computed
        }
        admissions = {self._serial + 1 + index: prompt for index, prompt in enumerate(prompts)}
        self._serial += len(prompts)
        freed, self._freed = self._freed, []
        grown = [self.held[serial] for serial in lengths]
        answer = self.core.assign(
            Assign(
                step=self._step,
                epoch=1,
                computed_step=self._computed_step,
                learned_serials=int64(list(lengths)),
                learned_counts=int32([len(held.fresh) for held in grown]),
                token_ids=int32([token for held in grown for token in held.fresh]),
                freed=int64(freed),
                grow_serials=int64(list(lengths)),
                grow_lengths=int32(
                    [length + len(self.held[serial].guesses) for serial, length in lengths.items()]
                ),
                grow_drafts=int32([len(held.guesses) for held in grown]),
                admissions=tuple(
                    Admission(serial=serial, token_ids=int32(tokens)) for serial, tokens in admissions.items()
                ),
                admission_tokens=budget,
                chunk_max=CHUNK_MAX + GUESSES_MAX,  # those that come may begin with more
            )
        )
        for held in grown:
            held.fresh = []
        self.operations += len(lengths) + len(admissions)
        if lost:
            self.core.release_all()
            self.held.clear()
            self.seen["steps lost"] += 1
            return
        stepping = self._take(answer, lengths, admissions)
        self._compute(answer, stepping)
        for serial in list(lengths)[answer.num_grown :]:
            self.seen["growth refused"] += 1
            self.end(serial)  # preempted
        self._check_count(answer)

    def _grow(self, held: _Held) -> int:
        """Grow a sequence by a step. Return its length after the step, guesses apart."""
        chance = self.random
        longest = self.shape.tokens
        if held.computed == len(held.tokens) and len(held.tokens) < longest:
            right = held.guesses[: chance.randint(0, len(held.guesses))]
            held.computed += len(right)
            held.fresh = [*right, chance.randrange(VOCABULARY)]
            held.tokens += held.fresh
            held.chain = _follow(held.chain, held.fresh)
        length = min(len(held.tokens), held.computed + chance.choice([1, CHUNK_MAX]))
        most = longest - length - 1 if length == len(held.tokens) else 0
        count = min(most, chance.choice([0, 0, 0, GUESSES_MAX]))
        held.guesses = [chance.randrange(VOCABULARY) for _ in range(count)] if count > 0 else []
        return length

    def _take(
        self, answer: Assigned, lengths: dict[int, int], admissions: dict[int, list[int]]
    ) -> list[tuple[_Held, int]]:
        """Take what was granted. Return the sequences of the step, each with its computed length."""
        stepping, blocks, at = [], answer.grown_blocks.tolist(), 0
        for serial, count in zip(lengths, answer.grown_counts.tolist(), strict=False):
            held = self.held[serial]
            held.blocks += blocks[at : at + count]
            at += count
            held.start, held.computed = held.computed, lengths[serial]
            stepping.append((held, held.computed))
        for grant in answer.admitted:
            tokens, cached = admissions[grant.serial], grant.num_cached_tokens
            assert 0 <= cached < len(tokens), "the last token is to be computed"
            held = _Held(
                tokens, _follow([], tokens), grant.blocks.tolist(), cached + grant.num_tokens, start=cached
            )
            self.held[grant.serial] = held
            stepping.append((held, held.computed))
            self.seen["tokens hit"] += cached
        return stepping

    def _compute(self, answer: Assigned, stepping: list[tuple[_Held, int]]) -> None:
        moves, memory, size = answer.moves, self._memory, self.shape.block_size
        if moves is not None:
            memory.move_before(moves)
        memory.copy(answer.copy_sources.tolist(), answer.copy_destinations.tolist())
        self.seen["blocks copied"] += len(answer.copy_sources)
        written: dict[int, _Held] = {}
        for held, end in stepping:
            chain = _follow(held.chain[:end], held.guesses)
            for group in range(len(self.shape.windows)):
                table = self._table(held, group)
                for at in range(held.start, len(chain)):
                    block = table[at // size]
                    assert written.setdefault(block, held) is held, f"two sequences write to block {block}"
                    memory.blocks[block][at % size] = (group, chain[at])
        for held, end in stepping:
            chain = _follow(held.chain[:end], held.guesses)
            for group in range(len(self.shape.windows)):
                table, reached = self._table(held, group), self._reached(held, group)
                found = [memory.blocks[table[at // size]][at % size] for at in range(reached, len(chain))]
                right = [(group, value) for value in chain[reached:]]
                assert found == right, f"group {group} finds something else from position {reached} on"
        if moves is not None:
            memory.move_beside(moves)
            self._count(moves)

    def _table(self, held: _Held, group: int) -> list[int]:
        """The blocks that a group of layers looks at."""
        return held.blocks[group :: len(self.shape.windows)]

    def _reached(self, held: _Held, group: int) -> int:
        """The first token that its last step reads there."""
        return first_read(self.shape.windows[group], held.start)

    def _reached_blocks(self, held: _Held) -> list[int]:
        size = self.shape.block_size
        return [
            block
            for group in range(len(self.shape.windows))
            for block in self._table(held, group)[self._reached(held, group) // size :]
        ]

    def _count(self, moves: BlockMoves) -> None:
        self.seen["blocks spilled"] += len(moves.spill_to)
        self.seen["blocks saved"] += len(moves.save_blocks)
        self.seen["blocks restored"] += len(moves.restore_slots)
        self.seen["blocks restored ahead"] += len(moves.restore_slots) - moves.num_needed

    # What must hold.

    def _check_count(self, answer: Assigned) -> None:
        reached = {block for held in self.held.values() for block in self._reached_blocks(held)}
        most = {block for held in self.held.values() for block in held.blocks}
        free = answer.blocks_free
        if not self._freed:  # those are still held
            least, all_free = self.shape.num_blocks - len(most), self.shape.num_blocks - len(reached)
            assert least <= free <= all_free, f"{free} blocks are free, {least} to {all_free} should be"

    def check(self) -> None:
        """No block is lost or had twice, and less than one is wasted by each sequence."""
        self.core.check_integrity()
        wasted, size = self.core.statistics().slots_wasted, self.shape.block_size
        most = len(self.core) * (
            size - 1 + GUESSES_MAX
        )  # slots for guesses are kept for the tokens that come
        most *= len(self.shape.windows)
        assert wasted <= most, f"{wasted} slots are wasted by {len(self.core)} sequences"

    def end_all(self) -> None:
        """End all sequences, so that every block is free."""
        for serial in list(self.held):
            self.end(serial)
        self.exchange([], [], 0)
        self.core.check_integrity()
        lost = self.shape.num_blocks - self.core.pool.num_free
        assert not lost and not len(self.core), f"{lost} blocks were lost"
        statistics = self.core.statistics()
        self.seen["evictions"] = statistics.evictions
        self.seen["blocks given back"] = statistics.blocks_given_back


def run(operations: int, seed: int = 0) -> Counter[str]:
    """Run so many operations on pools of every shape together. Return what happened."""
    seen: Counter[str] = Counter()
    for index, shape in enumerate(SHAPES):
        each = RandomBlocks(seed + index, shape)
        each.run(-(-operations // len(SHAPES)))
        seen += each.seen
        seen["operations"] += each.operations
    return seen
