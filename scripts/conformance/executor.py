"""The rules of an executor and of its model runner, told plans as the scheduler tells them, on the demo model."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from pageant.actors.runtime import Actor
from pageant.protocol.arrays import int32
from pageant.protocol.roles import EXECUTOR as ROLE
from pageant.protocol.roles import Feature
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import ExecutorReady, NewSequence, StepPlan, StepResult
from pageant.scripts.conformance.rules import Rules, explain_role
from pageant.scripts.conformance.stage import Stage
from pageant.scripts.engine_options import DEMO_MODEL

TAKES_ROLE = "it takes the role of executor"
READY = "it introduces itself to the scheduler and to the block manager, with memory for its longest request"
ANSWERS = "each plan is answered once, in order, with one token for each row that draws"
VOCABULARY = "tokens are those of the vocabulary"
BATCH = "a sequence has the same tokens, whatever else is in its steps"
CHUNKS = "a sequence has the same tokens, however its prompt is cut into steps"
BLOCKS = "a sequence has the same tokens, whichever blocks it has, and however its table grew"
PREFIX = "a sequence has the same tokens on blocks that another has computed for the same beginning"
COPIES = "blocks are copied before anything is computed"
RESUMES = "a sequence that comes again with its output goes on with the same tokens"
AHEAD = "a plan may come before the one before it is answered, whose tokens it computes"
DRAFTS = "a token is drawn after each draft up to the first that is wrong, the same as without drafts"
STEPS = "a plan of several steps gives the tokens of as many plans"
EPOCHS = "a plan for another epoch is not answered"
LIVES = "a new life of the scheduler finds no sequence of the former"

SCHEDULER, BLOCK_MANAGER, EXECUTOR = "scheduler", "blocks", "executor"
NUM_ROWS, NUM_BLOCKS = 4, 48
OUTPUT = 6
"""Tokens that each sequence draws."""


@dataclass
class _Plan:
    """A step in the making: what each scheduled row computes."""

    new: list[NewSequence] = field(default_factory=list)
    rows: list[tuple[int, int, int, bool]] = field(default_factory=list)  # row, start, tokens, draws
    freed: list[int] = field(default_factory=list)
    grown: dict[int, list[int]] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)
    drafts: dict[int, list[int]] = field(default_factory=dict)
    num_steps: int = 1


def check_executor(cls: type[Actor], **options: Any) -> tuple[str, ...]:
    """Hold an executor against the rules; return those that it kept.

    Its Options are given the demo model, a small batch and a small KV memory, as far as it has these options.

    Raises:
        BrokenRule: names the rule, and what happened.
    """
    rules = Rules()
    rules.must(TAKES_ROLE, getattr(cls, "role", None) is ROLE, explain_role(cls, ROLE))
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    given = {
        **{
            "model": str(DEMO_MODEL),
            "dtype": "float32",
            "threads": 1,
            "eos_token_ids": (config["eos_token_id"],),
        },
        **{"max_model_len": 128, "max_num_seqs": NUM_ROWS, "num_blocks": NUM_BLOCKS, "block_size": 16},
    }
    known = {name: value for name, value in given.items() if name in cls.Options.__struct_fields__}
    asyncio.run(_Trial(cls, {**known, **options}, int(config["vocab_size"]), rules).run())
    return rules.kept


class _Trial:
    """A scheduler of few sequences, which asks for the same tokens in many ways."""

    def __init__(self, cls: type[Actor], options: dict[str, Any], vocab_size: int, rules: Rules) -> None:
        self._cls, self._options, self._vocab_size, self._rules = cls, options, vocab_size, rules
        self._number, self._next_answer = 0, 1
        self._held: set[int] = set()  # rows
        self._chance = random.Random(11)

    async def run(self) -> None:
        async with Stage() as self._stage:
            for name in (SCHEDULER, BLOCK_MANAGER):
                await self._stage.enter(name)
            await self._stage.enter(EXECUTOR, self._cls(self._cls.Options(**self._options)))
            self._ready = await self._introduced()
            size = self._ready.block_size
            self._prompts = [self._prompt(2 * size + extra) for extra in (5, 1, size)]
            greedy = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
            await self._check(greedy)
            if Feature.SAMPLING in self._cls.features:
                await self._check_apart(SamplingParams(temperature=1.0, seed=5, max_tokens=OUTPUT))

    async def _introduced(self) -> ExecutorReady:
        ready = await self._stage.expect(SCHEDULER, ExecutorReady, READY)
        other = await self._stage.expect(BLOCK_MANAGER, ExecutorReady, READY)
        facts = [msgspec.structs.replace(one, host_bytes=0) for one in (ready, other)]  # what is free changes
        is_same = msgspec.structs.astuple(facts[0]) == msgspec.structs.astuple(facts[1])
        self._rules.must(READY, is_same, f"the scheduler was told {ready}, the block manager {other}")
        needed = -(-ready.max_model_len // ready.block_size) * len(ready.windows)
        fits = ready.num_blocks >= needed and ready.max_num_seqs >= 1 and ready.epoch == 1
        self._rules.must(READY, fits, f"{needed} blocks are needed for max_model_len; it said {ready}")
        return ready

    def _prompt(self, length: int) -> list[int]:
        """Tokens of which several come twice, for runners that look for what was there before."""
        few = [self._chance.randrange(5, self._vocab_size) for _ in range(7)]
        return [self._chance.choice(few) for _ in range(length)]

    async def _check(self, params: SamplingParams) -> None:
        alone = await self._check_apart(params)
        prompt, right = self._prompts[0], alone[0]
        size = self._ready.block_size
        for cuts in ((4, 3), (size, size), (1,)):
            self._must(CHUNKS, await self._serve(prompt, params, cuts=cuts), right, f"cut after {cuts}")
        await self._check_blocks(params, prompt, right)
        for known in (1, OUTPUT - 1):
            found = await self._serve(prompt, params, output=right[:known])
            self._must(RESUMES, found, right, f"{known} tokens of its output were known")
        self._must(AHEAD, await self._serve(prompt, params, ahead=True), right, "all plans came at once")
        await self._check_drafts(params, prompt, right)
        if self._ready.multi_step:
            plan = self._begun(prompt, params)
            plan.rows = [(0, 0, len(prompt) - 1, False)]  # each row of a plan of several steps has one token
            await self._step(plan)
            several = _Plan(rows=[(0, len(prompt) - 1, 1, True)], num_steps=3)
            result = await self._step(several)
            found = result.token_ids.tolist()
            is_prefix = 1 <= result.num_steps <= 3 and found == right[: result.num_steps]
            self._rules.must(STEPS, is_prefix, f"{result.num_steps} steps gave {found}; expected {right[:3]}")
        await self._check_lives(params, prompt, right)

    async def _check_apart(self, params: SamplingParams) -> list[list[int]]:
        """Return the tokens of each prompt."""
        alone = [await self._serve(prompt, params, row=row) for row, prompt in enumerate(self._prompts)]
        for tokens in alone:
            fine = all(0 <= token < self._vocab_size for token in tokens)
            self._rules.must(VOCABULARY, fine, f"it drew {tokens}; the vocabulary has {self._vocab_size}")
        together: list[list[int]] = [[] for _ in self._prompts]
        for place in range(OUTPUT):
            plan = _Plan()
            for row, prompt in enumerate(self._prompts):
                if place == 0:
                    plan.new.append(self._sequence(row, prompt, params))
                start, count = (0, len(prompt)) if place == 0 else (len(prompt) + place - 1, 1)
                plan.rows.append((row, start, count, True))
            for tokens, token in zip(together, (await self._step(plan)).token_ids.tolist(), strict=True):
                tokens.append(token)
        for row, (found, right) in enumerate(zip(together, alone, strict=True)):
            self._must(BATCH, found, right, f"row {row} of {len(self._prompts)}")
        return alone

    async def _check_blocks(self, params: SamplingParams, prompt: list[int], right: list[int]) -> None:
        size, groups = self._ready.block_size, len(self._ready.windows)
        scattered = list(range(self._ready.num_blocks))
        self._chance.shuffle(scattered)
        found = await self._serve(prompt, params, blocks=scattered[: self._table(prompt)])
        self._must(BLOCKS, found, right, "its blocks were scattered")
        self._must(BLOCKS, await self._serve(prompt, params, grows=True), right, "its table grew")
        if any(window is not None for window in self._ready.windows):
            return  # what is behind a window may be gone
        first = self._blocks(0, prompt)
        await self._serve(prompt, params, blocks=first)
        shared = [*first[: 2 * groups], *self._blocks(2, prompt)[2 * groups :]]
        found = await self._serve(prompt, params, row=1, blocks=shared, cached=2 * size)
        self._must(PREFIX, found, right, f"its first {2 * size} tokens were cached")
        own = self._blocks(3, prompt)
        await self._serve(self._prompts[2], params, row=3)  # so that something else is in these
        copies = list(zip(first[: 3 * groups], own[: 3 * groups], strict=True))
        found = await self._serve(prompt, params, row=1, blocks=own, cached=2 * size + 2, copies=copies)
        self._must(COPIES, found, right, f"{len(copies)} blocks were copied")

    async def _check_drafts(self, params: SamplingParams, prompt: list[int], right: list[int]) -> None:
        wrong = next(token for token in range(5, self._vocab_size) if token != right[2])
        for drafts, expected in (([right[1], right[2]], right[1:4]), ([right[1], wrong], right[1:3])):
            await self._step(self._begun(prompt, params))
            draft = _Plan(rows=[(0, len(prompt), 1, True)], drafts={0: drafts})
            found = (await self._step(draft)).token_ids.tolist()
            # Behind a draft that is wrong, what was drawn means nothing.
            self._must(DRAFTS, found[: len(expected)], expected, f"drafts {drafts} after {right[:1]}")

    async def _check_lives(self, params: SamplingParams, prompt: list[int], right: list[int]) -> None:
        await self._step(self._begun(prompt, params))
        self._tell(_Plan(rows=[(0, len(prompt), 1, True)]), epoch=7)
        self._number -= 1
        self._tell(_Plan(rows=[(0, len(prompt), 1, True)]))
        result = await self._stage.expect(SCHEDULER, StepResult, EPOCHS)
        self._rules.must(EPOCHS, result.epoch == 1, f"it answered {result!r:.200}")
        self._must(EPOCHS, result.token_ids.tolist(), right[1:2], "after a plan for another epoch")
        await self._stage.leave(SCHEDULER)
        await self._stage.enter(SCHEDULER)
        await self._stage.expect(SCHEDULER, ExecutorReady, READY)
        self._number, self._next_answer, self._held = 0, 1, set()
        self._must(LIVES, await self._serve(prompt, params), right, "after the scheduler's second start")

    def _must(self, rule: str, found: Sequence[int], right: Sequence[int], detail: str) -> None:
        self._rules.must(rule, list(found) == list(right), f"{detail}: it drew {found}; expected {right}")

    def _table(self, prompt: list[int]) -> int:
        """Return how many blocks a sequence has, for its prompt and its output."""
        return -(-(len(prompt) + OUTPUT) // self._ready.block_size) * len(self._ready.windows)

    def _blocks(self, row: int, prompt: list[int]) -> list[int]:
        """Return a table that no other row has."""
        room = self._ready.num_blocks // NUM_ROWS
        return list(range(row * room, row * room + self._table(prompt)))

    def _sequence(
        self,
        row: int,
        prompt: list[int],
        params: SamplingParams,
        *,
        output: Sequence[int] = (),
        blocks: Sequence[int] | None = None,
    ) -> NewSequence:
        return NewSequence(
            row=row,
            token_ids=int32([*prompt, *output]),
            num_prompt_tokens=len(prompt),
            blocks=int32(self._blocks(row, prompt) if blocks is None else blocks),
            params=params,
        )

    def _begun(self, prompt: list[int], params: SamplingParams) -> _Plan:
        """A plan that computes a whole prompt, and draws."""
        return _Plan(new=[self._sequence(0, prompt, params)], rows=[(0, 0, len(prompt), True)])

    async def _serve(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        row: int = 0,
        cuts: Sequence[int] = (),
        blocks: list[int] | None = None,
        grows: bool = False,
        output: Sequence[int] = (),
        cached: int = 0,
        copies: Sequence[tuple[int, int]] = (),
        ahead: bool = False,
    ) -> list[int]:
        """Return the output of one sequence, which is alone.

        Args:
            cuts: how many tokens the first steps compute.
            grows: whether it has only the blocks that its next tokens need.
            output: tokens of its output that it brings along.
            cached: tokens that its blocks hold already.
            ahead: whether no plan waits for the answer to the one before.
        """
        table = self._blocks(row, prompt) if blocks is None else blocks
        known, size = len(prompt) + len(output), self._ready.block_size
        plans, start = [], cached
        for end in (*(cached + sum(cuts[: place + 1]) for place in range(len(cuts))), known):
            plans.append(_Plan(rows=[(row, start, end - start, end == known)]))
            start = end
        plans += [_Plan(rows=[(row, place, 1, True)]) for place in range(known, len(prompt) + OUTPUT - 1)]
        had = -(-plans[0].rows[0][2] // size) * len(self._ready.windows) if grows else len(table)
        plans[0].new.append(self._sequence(row, prompt, params, output=output, blocks=table[:had]))
        plans[0].copies.extend(copies)
        if grows:
            for plan in plans[1:]:
                needed = -(-(plan.rows[0][1] + plan.rows[0][2]) // size) * len(self._ready.windows)
                if needed > had:
                    plan.grown[row], had = table[had:needed], needed
        found = list(output)
        if ahead:
            for plan in plans:
                self._tell(plan)
        for plan in plans:
            result = await (self._result(plan) if ahead else self._step(plan))
            found += result.token_ids.tolist()
        return found

    async def _step(self, plan: _Plan) -> StepResult:
        self._tell(plan)
        return await self._result(plan)

    def _tell(self, plan: _Plan, epoch: int = 1) -> None:
        self._number += 1
        new = {one.row for one in plan.new}
        freed = sorted(self._held if new else ())
        self._held = new or self._held
        columns = np.array([row[:3] for row in plan.rows], np.int32).T
        drafts = [plan.drafts.get(row, []) for row, *_ in plan.rows] if plan.drafts else []
        self._stage.tell(
            *(SCHEDULER, EXECUTOR),
            StepPlan(
                number=self._number,
                epoch=epoch,
                freed_rows=int32(freed),
                new=tuple(plan.new),
                grown_rows=int32(list(plan.grown)),
                grown_counts=int32([len(blocks) for blocks in plan.grown.values()]),
                grown_blocks=int32([block for blocks in plan.grown.values() for block in blocks]),
                copy_sources=int32([source for source, _ in plan.copies]),
                copy_destinations=int32([destination for _, destination in plan.copies]),
                rows=columns[0].copy(),
                starts=columns[1].copy(),
                num_tokens=columns[2].copy(),
                draws=np.array([row[3] for row in plan.rows], np.bool_),
                draft_counts=int32([len(some) for some in drafts]),
                draft_ids=int32([token for some in drafts for token in some]),
                num_steps=plan.num_steps,
            ),
        )

    async def _result(self, plan: _Plan) -> StepResult:
        result = await self._stage.expect(SCHEDULER, StepResult, ANSWERS)
        is_next = result.number == self._next_answer and result.epoch == 1
        self._rules.must(ANSWERS, is_next, f"result {result.number}; expected {self._next_answer}")
        self._next_answer += 1
        drawing = [row for row, _, _, draws in plan.rows if draws]
        found = result.rows.tolist()
        if not plan.drafts and plan.num_steps == 1:
            self._rules.must(ANSWERS, found == drawing, f"tokens for rows {found}; rows {drawing} draw")
        fine = len(found) * result.num_steps == len(result.token_ids) and not result.failed
        self._rules.must(ANSWERS, fine, f"it answered {result!r:.300}")
        return result
