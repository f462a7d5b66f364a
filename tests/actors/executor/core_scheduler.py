"""A scheduler of a play of the executor's core: plans rows that can go on, and checks each token that comes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from pageant.protocol.arrays import bools, freeze, int32
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import LateTokens, NewSequence, StepPlan, StepResult
from pageant.protocol.tiers import BlockMoves
from pageant.protocol.verification import MISSING
from tests.actors.executor.core_model import BLOCKS, LENGTH_MAX, right_tokens

EPOCH, AHEAD = 7, 2
PROMPTS = ((1, 2, 3), (4,), (5, 6, 7, 8, 9))


@dataclass(eq=False)
class Sequence:
    """A sequence in a row, as far as the scheduler knows it."""

    row: int
    prompt: tuple[int, ...]
    guided: bool
    params: SamplingParams
    output: list[int] = field(default_factory=list)
    planned: int = 0
    """Number of its output tokens that the plans so far draw."""
    in_flight: int = 0
    """Number of plans with it that are not answered."""
    waits: bool = False
    """Whether a token was deferred, and has not come."""
    is_new: bool = True


class PlayScheduler:
    """Plans the steps of an executor's core, and knows the right tokens of every row."""

    def __init__(self, generator: random.Random, seen: Counter[str]) -> None:
        self.random, self.seen = generator, seen
        self.incarnation = 1
        self.number = 0
        """The number of the last plan."""
        self.rows: dict[int, Sequence] = {}
        self.freed: list[int] = []
        """Rows that the next plan frees."""
        self.plans: dict[int, tuple[StepPlan, list[Sequence]]] = {}
        """Plans of this life that are not answered, by number, with their sequences."""
        self.failures: list[str] = []
        self.to_save: dict[tuple[int, int], tuple[list[int], int]] = {}
        """Blocks that a plan has saved, by incarnation and number, and how many of them are urgent."""
        self._blocks = 0

    def add(self, row: int, *, guided: bool, penalised: bool) -> None:
        """Begin a sequence in a row that is free."""
        if row not in self.rows:
            params = SamplingParams(
                temperature=0.0,
                structured_outputs={"regex": "a+"} if guided else None,
                presence_penalty=0.5 if penalised else 0.0,
            )
            self.rows[row] = Sequence(row, self.random.choice(PROMPTS), guided, params)

    def end(self, row: int) -> None:
        """End a sequence, wherever it is."""
        if row in self.rows and not self.rows[row].is_new:
            self.freed.append(row)
        self.rows.pop(row, None)

    def plan(self, num_steps: int, num_saves: int) -> StepPlan | None:
        """Return the next plan, of all rows that can go on, or None if there is nothing to plan yet."""
        several = [plan for plan, _ in self.plans.values() if plan.num_steps > 1]
        going = [one for one in self.rows.values() if self._can_go_on(one, num_steps if not several else 9)]
        if not going or len(self.plans) >= AHEAD:
            return None
        continues = bool(several)
        if continues and (any(one.is_new for one in going) or {id(one) for one in going} != self._of_last()):
            return None  # until those plans are over
        if num_steps > 1 and not continues and any(one.in_flight or one.is_new for one in going):
            num_steps = 1
        if any(one.guided or one.params.presence_penalty for one in going):
            num_steps = 1
        self.number += 1
        plan = self._build(going, num_steps if not continues else max(2, num_steps), continues, num_saves)
        self.plans[self.number] = plan, going
        for one in going:
            one.is_new = False
            one.planned += plan.num_steps
            one.in_flight += 1
        self.freed = []
        freeze(plan)
        self.seen["several"] += plan.num_steps > 1
        return plan

    def _of_last(self) -> set[int]:
        return {id(one) for one in self.plans[self.number][1]} if self.number in self.plans else set()

    def _can_go_on(self, one: Sequence, num_steps: int) -> bool:
        room = len(one.prompt) + one.planned + num_steps < LENGTH_MAX
        if one.waits or (one.planned > len(one.output) and not one.in_flight):
            return False
        return room and (one.row not in self.freed or one.is_new)

    def _build(self, going: list[Sequence], num_steps: int, continues: bool, num_saves: int) -> StepPlan:
        new, starts, counts = [], [], []
        for one in going:
            known = (*one.prompt, *one.output)
            if one.is_new:
                starts.append(0)
                counts.append(len(known))
                new.append(
                    NewSequence(
                        row=one.row,
                        token_ids=int32(known),
                        num_prompt_tokens=len(one.prompt),
                        blocks=int32(range(BLOCKS * one.row, BLOCKS * (one.row + 1))),
                        params=one.params,
                    )
                )
            else:
                starts.append(len(one.prompt) + one.planned - 1)
                counts.append(1)
        return StepPlan(
            number=self.number,
            epoch=EPOCH,
            freed_rows=int32(self.freed),
            new=tuple(new),
            grown_rows=int32(),
            grown_counts=int32(),
            grown_blocks=int32(),
            rows=int32([one.row for one in going]),
            starts=int32(starts),
            num_tokens=int32(counts),
            draws=bools([True] * len(going)),
            moves=self._saves(num_saves),
            num_steps=num_steps,
            continues=continues,
        )

    def _saves(self, count: int) -> BlockMoves | None:
        if not count:
            return None
        blocks = [self._blocks + place for place in range(count)]
        self._blocks += count
        self.to_save[self.incarnation, self.number] = blocks, count // 2
        return BlockMoves(
            save_blocks=int32(blocks),
            save_slots=int32(blocks),
            num_urgent=count // 2,
            restore_slots=int32(),
            restore_blocks=int32(),
            num_needed=0,
            spill_slots=int32(),
            spill_to=int32(),
        )

    def restart(self) -> None:
        """Begin another life, which knows the tokens received so far and plans all rows anew."""
        self.incarnation += 1
        self.number, self.plans, self.freed = 0, {}, []
        self.rows = {
            row: replace(one, planned=len(one.output), in_flight=0, waits=False, is_new=True)
            for row, one in self.rows.items()
        }
        self.seen["schedulers"] += 1

    def take(self, result: StepResult, *, may_fail: bool) -> None:
        """Take the answer to the oldest plan. Rows fail only while there is no grammar."""
        plan, going = self.plans.pop(result.number)
        assert result.number == min([result.number, *self.plans]), "answers come in order"
        self.seen["stopped short"] += result.num_steps < plan.num_steps
        tokens = result.token_ids.reshape(result.num_steps, len(going))
        assert may_fail or not result.failed, result.failed
        for place, one in enumerate(going):
            if self.rows.get(one.row) is not one:
                continue  # it has ended, and nobody reads what comes for it
            one.in_flight -= 1
            if place in result.deferred:
                one.waits = True
                self.seen["deferred"] += 1
            elif place in result.void:
                self.seen["void"] += 1
            else:
                one.output += tokens[:, place].tolist()
            if not one.in_flight or result.num_steps < plan.num_steps:
                one.planned = len(one.output) + one.waits
            self._check(one)
        for one in going:
            if result.num_steps < plan.num_steps:
                one.planned = len(one.output)

    def take_late(self, message: LateTokens) -> None:
        """Take tokens that were deferred, or the reason why a row has none."""
        for place, (row, token) in enumerate(
            zip(message.rows.tolist(), message.token_ids.tolist(), strict=True)
        ):
            one = self.rows.get(row)
            if place in message.failed:
                self.failures.append(message.failed[place])
                self.end(row)
            elif one is not None and one.waits:
                one.waits = False
                one.output.append(token)
                self._check(one)
                self.seen["late"] += 1
                if not one.in_flight:
                    one.planned = len(one.output)

    def _check(self, one: Sequence) -> None:
        assert MISSING not in one.output
        right = right_tokens(one.prompt, len(one.output), guided=one.guided)
        assert one.output == right, f"row {one.row} said {one.output}, {right} is right"
