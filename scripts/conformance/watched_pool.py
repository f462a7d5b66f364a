"""A pool, and what each answer about it must be like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pageant.protocol.allocation import Admitted, Assigned
from pageant.protocol.tiers import DISK, BlockMoves
from pageant.scripts.conformance.block_rules import (
    ALL_OR_NOTHING,
    ALONE,
    APART,
    BUDGET,
    COLUMNS,
    CONTENT,
    COPIES,
    FULL_CHUNK,
    LOGITS,
    MOVES,
    POOL,
    PREFIX,
    REACH,
    ROOM,
    SAVED,
    SLOTS,
)
from pageant.scripts.conformance.rules import Rules
from pageant.scripts.conformance.shadow import ShadowMemory, first_read


@dataclass(eq=False)
class Held:
    """A sequence that runs."""

    tokens: list[int]
    blocks: list[int]
    computed: int  # tokens whose KV is there, and right, once the last exchange's step is computed
    start: int = 0  # the first token that was to be computed when it was last asked for
    fresh: list[int] = field(default_factory=list)  # drawn since the last exchange
    guesses: list[int] = field(default_factory=list)  # of what comes next, computed besides


class WatchedPool:
    """Pool's memory, those who hold blocks of it, and the rules for what is granted to them.

    Args:
        slots: of the host's memory.
        spaces: what sequences share KV by, besides their tokens, in turns.
    """

    def __init__(
        self,
        rules: Rules,
        num_blocks: int,
        block_size: int,
        slots: int,
        windows: tuple[int | None, ...],
        spaces: Sequence[dict[str, Any]],
    ) -> None:
        self.rules = rules
        self.num_blocks, self.size, self.num_slots = num_blocks, block_size, slots
        self.windows, self.spaces = windows, spaces
        self.longest = num_blocks // len(windows) * block_size  # tokens of one sequence
        self.step = 0
        self.held: dict[int, Held] = {}
        self.memory = ShadowMemory(num_blocks, block_size)  # of what space, group and prefix its KV is

    def must(self, rule: str, kept: bool, detail: str) -> None:
        """Breaks the rule if it was not kept."""
        self.rules.must(rule, kept, f"{detail} (exchange {self.step})")

    def check_growth(
        self, answer: Assigned, growing: dict[int, Held], lengths: dict[int, int]
    ) -> list[tuple[int, int, int]]:
        """Check the sequences that grew, as (serial, from, to)."""
        counts, blocks = answer.grown_counts.tolist(), answer.grown_blocks.tolist()
        self.must(PREFIX, answer.num_grown <= len(growing), f"{answer.num_grown} of {len(growing)} grew")
        fits = len(counts) == answer.num_grown and sum(counts) == len(blocks)
        self.must(COLUMNS, fits, f"{answer.num_grown} grew, by {counts}, with {len(blocks)} blocks")
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
            wanted = self.blocks_for(length) - len(growing[serial].blocks)
            free = self.num_blocks - self.num_held_most()
            self.must(ROOM, wanted > free, f"growth by {wanted} was refused with {free} blocks free")
        return written

    def check_admissions(
        self, answer: Assigned, admissions: dict[int, list[int]], budget: int, num_growing: int
    ) -> list[tuple[int, int, int]]:
        """Check the sequences that were admitted, as (serial, from, to)."""
        granted = [grant.serial for grant in answer.admitted]
        in_order = granted == list(admissions)[: len(granted)]
        self.must(PREFIX, in_order, f"{granted} were admitted of {list(admissions)}")
        if answer.num_grown < num_growing:
            self.must(PREFIX, not granted, f"{granted} were admitted though growth was refused")
        written, left = [], budget
        for grant in answer.admitted:
            written.append(self._check_grant(grant, admissions[grant.serial], left))
            left -= grant.num_tokens
        if answer.num_grown == num_growing and len(granted) < len(admissions) and left > 0:
            tokens = list(admissions.values())[len(granted)]
            free = self.num_blocks - self.num_held_most()
            wanted = self.blocks_for(len(tokens))
            comes = answer.moves is not None and len(answer.moves.restore_blocks) > answer.moves.num_needed
            self.must(ROOM, wanted > free or comes, f"{wanted} blocks were refused with {free} free")
        return written

    def _check_grant(self, grant: Admitted, tokens: list[int], left: int) -> tuple[int, int, int]:
        blocks, cached = grant.blocks.tolist(), grant.num_cached_tokens
        who = f"sequence {grant.serial} of {len(tokens)} tokens, {cached} of them cached"
        self.must(LOGITS, 0 <= cached < len(tokens), who)
        self.must(BUDGET, 1 <= grant.num_tokens <= left, f"{grant.num_tokens} tokens of {left} left; {who}")
        chunk = min(len(tokens) - cached, left)
        self.must(
            FULL_CHUNK, grant.num_tokens == chunk, f"{grant.num_tokens} tokens instead of {chunk}; {who}"
        )
        before = self.num_held()
        self.held[grant.serial] = Held(tokens, blocks, cached + grant.num_tokens, cached)
        rest = self.blocks_for(len(tokens)) - len(blocks)
        free = self.num_blocks - self.num_held()
        self.must(ALL_OR_NOTHING, rest <= free, f"{rest} more blocks are needed, {free} free; {before} held")
        return grant.serial, cached, cached + grant.num_tokens

    def check_slots(self, serial: int, end: int) -> None:
        """A sequence has blocks of the pool, each once, for so many tokens."""
        held = self.held[serial]
        wrong = [block for block in held.blocks if not 0 <= block < self.num_blocks]
        self.must(POOL, not wrong, f"sequence {serial} has the blocks {wrong} of {self.num_blocks}")
        slots = len(held.blocks) // len(self.windows) * self.size
        self.must(SLOTS, slots >= end, f"sequence {serial} has {slots} slots for {end} tokens")
        reached = self._reached(held)
        distinct = len(set(reached)) == len(reached)
        self.must(ALONE, distinct, f"sequence {serial} has a block twice: {reached}")

    def check_alone(self, written: list[tuple[int, int, int]]) -> None:
        """A block that is full after this step may be matched in the very same exchange; no other may."""
        writers: dict[int, int] = {}
        for serial, start, end in written:
            for block in self._written(serial, start, end):
                other = writers.setdefault(block, serial)
                self.must(ALONE, other == serial, f"sequences {serial} and {other} both write block {block}")
            partial = set(self._written(serial, end, end))
            sharers = [
                s
                for s, held in self.held.items()
                if s != serial and not partial.isdisjoint(self._reached(held))
            ]
            self.must(ALONE, not sharers, f"sequences {sharers} have one of {partial}, which {serial} fills")

    def check_moves(self, answer: Assigned, moves: BlockMoves, written: list[tuple[int, int, int]]) -> None:
        """Check that moves of an answer move what is there to where there is room, and in time."""
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
        self.must(MOVES, fine and granted, f"{moves!r} of {self.num_blocks} blocks, {self.num_slots} slots")
        self.must(APART, set(restored).isdisjoint(answer.copy_sources.tolist()), f"{answer!r}")
        changed = {*restored, *answer.copy_destinations.tolist()}
        for serial, start, end in written:
            changed.update(self._written(serial, start, end))
        beside = restored[moves.num_needed :]
        used = {block for held in self.held.values() for block in self._reached(held)}
        self.must(APART, used.isdisjoint(beside), f"{beside} are restored beside a step that uses them")
        late = set(saved[urgent:]) & changed
        self.must(SAVED, not late, f"blocks {late} are saved beside the step that writes to them")
        blank = [block for block in saved if self.memory.blocks[block][0] is None]
        self.must(SAVED, not blank, f"blocks {blank} are saved, in which nothing has been computed")

    def copy(self, answer: Assigned) -> None:
        """Copy blocks before the step: all is read, then all is written."""
        sources, destinations = answer.copy_sources.tolist(), answer.copy_destinations.tolist()
        fine = len(sources) == len(destinations) == len(set(destinations))
        self.must(COPIES, fine, f"{sources} are copied to {destinations}")
        blocks = [*sources, *destinations]
        self.must(POOL, all(0 <= block < self.num_blocks for block in blocks), f"{blocks} are copied")
        self.memory.copy(sources, destinations)

    def compute(self, written: list[tuple[int, int, int]]) -> None:
        """The step: all is written, then all is read."""
        for serial, start, end in written:
            held = self.held[serial]
            tokens = [*held.tokens[: held.computed], *held.guesses]
            for group in range(len(self.windows)):
                for at in range(start, end):
                    self._block(held, at, group)[at % self.size] = self._right(
                        serial, group, tokens[: at + 1]
                    )
        for serial, start, end in written:
            held = self.held[serial]
            tokens = [*held.tokens[: held.computed], *held.guesses]
            for group, window in enumerate(self.windows):
                for at in range(first_read(window, start), end):
                    found = self._block(held, at, group)[at % self.size]
                    right = found == self._right(serial, group, tokens[: at + 1])
                    self.must(CONTENT, right, f"sequence {serial} reads other content at position {at}")

    def _right(self, serial: int, group: int, tokens: list[int]) -> tuple[int, ...]:
        """Return what the last of these tokens leaves in the layers of a group."""
        return self.space_of(serial), group, *tokens

    def space_of(self, serial: int) -> int:
        """Return the space that a sequence's KV is of: the first that is like its own."""
        return self.spaces.index(self.spaces[serial % len(self.spaces)])

    def _block(self, held: Held, at: int, group: int) -> list[Any]:
        """Return the slots of the block that a sequence's token is in."""
        return self.memory.blocks[held.blocks[at // self.size * len(self.windows) + group]]

    def blocks_for(self, length: int) -> int:
        """Return how many blocks so many tokens take, in all groups of layers."""
        return -(-length // self.size) * len(self.windows)

    def _written(self, serial: int, start: int, end: int) -> list[int]:
        """The blocks of a sequence that hold its tokens from `start` to `end`."""
        first = start // self.size * len(self.windows)
        return self.held[serial].blocks[first : self.blocks_for(end)]

    def _reached(self, held: Held) -> list[int]:
        """The blocks of a sequence that its last step's windows reach."""
        reached = []
        for group, window in enumerate(self.windows):
            first = first_read(window, held.start) // self.size
            reached += held.blocks[group :: len(self.windows)][first:]
        return reached

    def num_held(self) -> int:
        """Blocks that the last steps of their sequences reach."""
        return len({block for held in self.held.values() for block in self._reached(held)})

    def num_held_most(self) -> int:
        """Return the blocks held at most, with those that were reached once and may not have been given back yet."""
        return len({block for held in self.held.values() for block in held.blocks})

    def check_count(self, answer: Assigned, rule: str) -> None:
        """Check that as many blocks are free as the answer says."""
        free, least = (self.num_blocks - count for count in (self.num_held(), self.num_held_most()))
        right = least <= answer.blocks_free <= free and answer.num_blocks == self.num_blocks
        told = f"{answer.blocks_free} of {answer.num_blocks} are said to be free; {free} are"
        if self.windows != (None,):
            self.must(REACH, answer.blocks_free <= free, told)
        self.must(rule, right, told)
