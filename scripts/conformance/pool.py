"""The rules of a block pool: whatever order it evicts in, no block is lost, and none is had twice."""

from __future__ import annotations

import random

from pageant.actors.blocks.actor import BlockManager
from pageant.actors.blocks.pool import BlockPool
from pageant.scripts.conformance.blocks import check_block_manager
from pageant.scripts.conformance.rules import BrokenRule, Rules

SUBCLASS = "it is a subclass of BlockPool, made from num_blocks and enable_prefix_caching"
VICTIM = "next_victims returns as many free blocks as are asked for, and changes nothing"
TAKE = "take holds as many blocks as are asked for, each free before"
MATCH = "match holds the blocks of the longest prefix that is cached, and no other"
KEPT = "a cached block keeps its name until it is taken"
FREE = "a freed block is free when nobody else holds it"
TOLD = "on_freed and on_taken are survived for every block, in any order"
SOUND = "check_integrity passes after every operation"


def check_pool(cls: type[BlockPool]) -> tuple[str, ...]:
    """Puts a pool on trial, alone and under the block manager; returns the rules that it kept.

    Raises:
        BrokenRule: names the rule, and what happened.
    """
    rules = Rules()
    rules.must(SUBCLASS, isinstance(cls, type) and issubclass(cls, BlockPool), f"{cls!r} is not")
    for seed, num_blocks in enumerate((1, 3, 16, 50)):
        _Trial(cls, rules, seed, num_blocks).run()
    manager = type("Manager", (BlockManager,), {"pool_class": cls, "__module__": __name__})
    for rule in check_block_manager(manager):
        rules.must(rule, True)
    return rules.kept


class _Trial:
    """Sequences come, are named, and go; a plain model says what is right."""

    def __init__(self, cls: type[BlockPool], rules: Rules, seed: int, num_blocks: int) -> None:
        self._rules = rules
        try:
            self._pool = cls(num_blocks, True)
        except TypeError as error:
            raise BrokenRule(SUBCLASS, str(error)) from error
        self._random = random.Random(seed)
        self._sequences: list[list[int]] = []
        self._cached: dict[bytes, int] = {}

    def run(self) -> None:
        for _ in range(300):
            action = self._random.choice((self._take, self._take, self._match, self._free, self._free))
            try:
                action()
            except (KeyError, IndexError, ValueError) as error:
                raise BrokenRule(TOLD, f"{type(error).__name__}: {error}") from error
            try:
                self._pool.check_integrity()
            except AssertionError as error:
                raise BrokenRule(SOUND, str(error)) from error
        for sequence in self._sequences:
            self._pool.free(sequence)
        self._must(FREE, self._pool.num_free == self._pool.num_blocks, f"{self._pool.num_free} are free")

    def _must(self, rule: str, kept: bool, detail: str) -> None:
        self._rules.must(rule, kept, detail)

    def _held(self, block: int) -> int:
        return sum(sequence.count(block) for sequence in self._sequences)

    def _take(self) -> None:
        pool = self._pool
        if not pool.num_free:
            return
        free = [block for block in range(pool.num_blocks) if not self._held(block)]
        count = self._random.randint(1, len(free))
        victims = pool.next_victims(count)
        distinct = len(set(victims)) == len(victims) == count
        self._must(
            VICTIM, distinct and set(victims) <= set(free), f"it returned {victims!r}; free are {free}"
        )
        self._must(VICTIM, pool.next_victims(count) == victims, "it returned others the next time")
        try:
            blocks = pool.take(count)
        except KeyError as error:
            raise BrokenRule(VICTIM, f"it returned {error}, which is held") from error
        fine = len(set(blocks)) == count and set(blocks) <= set(free)
        self._must(TAKE, fine, f"it returned {blocks} for {count} of {free}")
        self._cached = {name: block for name, block in self._cached.items() if block not in blocks}
        self._sequences.append(blocks)
        chain = bytes([self._random.randrange(3)])
        for block in blocks[: self._random.randint(0, count)]:
            chain += bytes([self._random.randrange(2)])
            if pool.name([block], [chain]) == [True]:
                self._cached[chain] = block

    def _match(self) -> None:
        chain = bytes([self._random.randrange(3), *(self._random.randrange(2) for _ in range(4))])
        names = [chain[: length + 1] for length in range(1, len(chain))]
        right = []
        for name in names:
            if name not in self._cached:
                break
            right.append(self._cached[name])
        found = self._pool.match(names)
        self._must(MATCH if len(found) >= len(right) else KEPT, found == right, f"{found}, not {right}")
        self._rules.must(KEPT, True)
        if found:
            self._sequences.append(found)

    def _free(self) -> None:
        if not self._sequences:
            return
        sequence = self._sequences.pop(self._random.randrange(len(self._sequences)))
        self._pool.free(sequence)
        right = sum(not self._held(block) for block in range(self._pool.num_blocks))
        self._must(FREE, self._pool.num_free == right, f"{self._pool.num_free} are free, not {right}")
