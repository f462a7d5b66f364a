"""The rules of a scheduler, for any class of that role: it is asked to serve, and everything that it says is
held against what a block manager, an executor and a detokenizer may expect.

The block manager is the default one; the executor is a stand-in whose model's next token is a known function
of the prefix, so that the right answer of each request is known.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from pageant.actors.blocks.actor import BlockManager
from pageant.actors.executor.batch.batch import Batch, PlanMismatch
from pageant.actors.runtime import Actor
from pageant.actors.scheduler.actor import Scheduler
from pageant.actors.scheduler.core import SchedulerCore
from pageant.protocol.allocation import GetPoolStatistics
from pageant.protocol.arrays import int32, int64
from pageant.protocol.outputs import Stopped, TokenBatch
from pageant.protocol.roles import SCHEDULER as ROLE
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Abort, Finished, Submit
from pageant.protocol.stepping import ExecutorReady, StepPlan, StepResult
from pageant.protocol.streams import Acknowledge
from pageant.scripts.conformance.rules import BrokenRule, Rules, explain_role
from pageant.scripts.conformance.stage import Stage

NUMBERED = "TokenBatches are numbered 1, 2, 3, ... without gaps"
OPENED = "a request is opened at the detokenizer once, before anything else of it"
PLANS = (
    "plans are numbered 1, 2, 3, ... within an epoch, three at most are unanswered, and follow one another"
)
BUDGET = "a plan computes at most max_num_batched_tokens tokens, each row at least one and only once"
BATCH = "at most max_num_seqs rows are in the batch"
ONCE = "every request ends exactly once"
TOKENS = "every request gets the tokens that the model drew for it, in order, and ends where it should"
ABORTED = "an aborted request ends with abort, unless it ended before"
REST = "when all requests have ended, all blocks are free, and nobody is told anything"
REFUSED = "a prompt that leaves no room for an answer ends with an error that says so"

SCHEDULER, BLOCKS, EXECUTOR, DETOKENIZER, FRONTEND = (
    *("scheduler", "blocks", "executor/0"),
    *("detokenizer", "frontend"),
)
NUM_BLOCKS, BLOCK_SIZE, MAX_NUM_SEQS, BUDGET_TOKENS, MAX_MODEL_LEN = 14, 4, 5, 19, 48
VOCABULARY, END_TOKEN = 17, 0
TURNS_MAX = 5_000


def check_scheduler(cls: type[Actor], **options: Any) -> tuple[str, ...]:
    """Puts a scheduler on trial; returns the rules that it kept.

    Its Options must have the default one's `max_num_seqs`, `max_num_batched_tokens`, `max_model_len` and
    `eos_token_ids`; settings of those names reach it in a topology, too.

    Raises:
        BrokenRule: names the rule, and what happened.
    """
    rules = Rules()
    rules.must("it takes the role of scheduler", getattr(cls, "role", None) is ROLE, explain_role(cls, ROLE))
    for seed in range(3):
        asyncio.run(_Trial(cls, options, rules, seed).run())
    return rules.kept


def check_with_policy(policy: type[Any], rules: Rules, rule: str) -> None:
    """Lets the default scheduler serve with a policy of one's own.

    Raises:
        BrokenRule: `rule`, with what happened.
    """

    class WithPolicy(Scheduler):
        def __init__(self, options: Any) -> None:
            super().__init__(options)
            self.core = SchedulerCore(policy(), self.core.limits)

    try:
        check_scheduler(WithPolicy)
    except BrokenRule as error:
        raise BrokenRule(rule, str(error)) from error
    rules.must(rule, True)


def next_token(prefix: list[int]) -> int:
    """Return what the model says after a prefix."""
    state = 7
    for token in prefix:
        state = (state * 31 + token + 1) % 1_000_003
    return state % VOCABULARY


class _Asked:
    """A request, its right tokens, and what came of it."""

    def __init__(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        self.request_id, self.prompt, self.max_tokens = request_id, prompt, max_tokens
        self.right: list[int] = []
        while len(self.right) < max_tokens and len(prompt) + len(self.right) < MAX_MODEL_LEN:
            self.right.append(next_token([*prompt, *self.right]))
            if self.right[-1] == END_TOKEN:
                break
        self.tokens: list[int] = []
        self.finished: Finished | None = None
        self.aborted = self.stopped = False
        self.opened = False

    @property
    def over(self) -> bool:
        return self.finished is not None or self.stopped


class _Trial:
    def __init__(self, cls: Any, options: Any, rules: Rules, seed: int) -> None:
        self._cls, self._options, self._rules = cls, options, rules
        self._random = random.Random(seed)
        self._batch = Batch(MAX_NUM_SEQS, MAX_MODEL_LEN, BLOCK_SIZE, ())
        self._asked: dict[str, _Asked] = {}
        self._by_serial: dict[int, _Asked] = {}
        self._last_batch = self._last_plan = 0
        self._plans: list[StepPlan] = []
        self.stage = Stage()

    async def run(self) -> None:
        async with self.stage as stage:
            for name in (EXECUTOR, DETOKENIZER, FRONTEND):
                await stage.enter(name)
            await stage.enter(BLOCKS, BlockManager(BlockManager.Options()))
            await stage.enter(SCHEDULER, self._cls(self._scheduler_options()))
            for target in (SCHEDULER, BLOCKS):
                stage.tell(EXECUTOR, target, self._ready())
            for turn in range(TURNS_MAX):
                if turn < 300:
                    self._users()
                await stage.settle()
                busy = self._executor() + self._detokenizer()
                if turn >= 300 and not busy:
                    break
            await self._check_rest()

    def _must(self, rule: str, kept: bool, detail: str) -> None:
        self._rules.must(rule, kept, detail)

    def _scheduler_options(self) -> Any:
        return self._cls.Options(
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=BUDGET_TOKENS,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=(END_TOKEN,),
            **self._options,
        )

    def _ready(self) -> ExecutorReady:
        return ExecutorReady(
            epoch=1,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_num_seqs=MAX_NUM_SEQS,
            max_model_len=MAX_MODEL_LEN,
            device="none",
            dtype="none",
        )

    # What the others say.

    def _users(self) -> None:
        chance = self._random
        if chance.random() < 0.3:
            length = MAX_MODEL_LEN if chance.random() < 0.05 else chance.randint(1, 30)
            same = [5, 3, 9, 1] * 12
            prompt = same[:length] if chance.random() < 0.5 else [chance.randrange(17) for _ in range(length)]
            asked = _Asked(f"request-{len(self._asked)}", prompt, chance.choice([1, 4, 20]))
            self._asked[asked.request_id] = asked
            submit = Submit(
                request_id=asked.request_id,
                frontend=FRONTEND,
                prompt_token_ids=int32(prompt),
                params=SamplingParams(temperature=0.0, seed=0, max_tokens=asked.max_tokens),
            )
            self.stage.tell(FRONTEND, SCHEDULER, submit)
        running = [asked for asked in self._asked.values() if not asked.over]
        if running and chance.random() < 0.08:
            asked = chance.choice(running)
            asked.aborted = True
            self.stage.tell(FRONTEND, SCHEDULER, Abort(frontend=FRONTEND, request_ids=(asked.request_id,)))

    def _executor(self) -> bool:
        plans = [message for message in self.stage.take(EXECUTOR) if isinstance(message, StepPlan)]
        self._plans += plans
        self._must(PLANS, len(self._plans) <= 3, f"{len(self._plans)} plans are unanswered")
        if not self._plans:
            return False
        self._compute(self._plans.pop(0))
        return True

    def _compute(self, plan: StepPlan) -> None:
        self._last_plan += 1
        self._must(PLANS, plan.number == self._last_plan, f"number {plan.number}, not {self._last_plan}")
        rows, counts = plan.rows.tolist(), plan.num_tokens.tolist()
        fine = sum(counts) <= BUDGET_TOKENS and min(counts, default=0) > 0 and len(set(rows)) == len(rows)
        self._must(BUDGET, fine, f"rows {rows} compute {counts} tokens; the budget is {BUDGET_TOKENS}")
        inside = all(0 <= row < MAX_NUM_SEQS for row in (*rows, *(new.row for new in plan.new)))
        self._must(BATCH, inside, f"rows {rows} of {MAX_NUM_SEQS}")
        try:
            inputs = self._batch.apply(plan)
        except (PlanMismatch, IndexError) as error:
            raise BrokenRule(PLANS, str(error)) from error
        lengths = inputs.sampling.position.tolist()
        tokens = [
            next_token(self._batch._token_ids[row, :length].tolist())
            for row, length in zip(inputs.rows.tolist(), lengths, strict=True)
        ]
        drawn = int32(tokens)
        self._batch.take_tokens(inputs, drawn.astype("int64"))
        result = StepResult(number=plan.number, epoch=1, rows=inputs.rows, token_ids=drawn, seconds=0.0)
        self.stage.tell(EXECUTOR, SCHEDULER, result)

    def _detokenizer(self) -> bool:
        batches = [message for message in self.stage.take(DETOKENIZER) if isinstance(message, TokenBatch)]
        for batch in batches:
            self._last_batch += 1
            number = f"number {batch.number}, not {self._last_batch}"
            self._must(NUMBERED, batch.number == self._last_batch, number)
            self._read(batch)
            self.stage.tell(DETOKENIZER, SCHEDULER, Acknowledge(stream="tokens", up_to=batch.number))
        return bool(batches)

    def _read(self, batch: TokenBatch) -> None:
        for opened in batch.opened:
            asked = self._asked[opened.request_id]
            self._must(OPENED, not asked.opened, f"{opened.request_id} is opened again")
            asked.opened = True
            self._by_serial[opened.serial] = asked
        token_ids, position = batch.token_ids.tolist(), 0
        rows = zip(batch.serials.tolist(), batch.counts.tolist(), strict=True)
        for index, (serial, count) in enumerate(rows):
            self._must(OPENED, serial in self._by_serial, f"serial {serial} was never opened")
            asked = self._by_serial[serial]
            finished = batch.finished.get(index)
            tokens, position = token_ids[position : position + count], position + count
            if asked.stopped:
                continue
            self._must(ONCE, asked.finished is None, f"something comes of {asked.request_id} after its end")
            asked.tokens += tokens
            if finished is not None:
                self._end(asked, finished)
            elif asked.tokens and self._random.random() < 0.05:
                asked.stopped = True
                stopped = Stopped(serials=int64([serial]), num_output_tokens=int32([len(asked.tokens)]))
                self.stage.tell(DETOKENIZER, SCHEDULER, stopped)

    def _end(self, asked: _Asked, finished: Finished) -> None:
        asked.finished = finished
        who = f"{asked.request_id} ended with {finished!r} after {asked.tokens}; right is {asked.right}"
        if len(asked.prompt) >= MAX_MODEL_LEN:
            self._must(REFUSED, finished.reason == "error" and bool(finished.message), who)
        elif finished.reason == "abort":
            prefix = asked.tokens == asked.right[: len(asked.tokens)]
            self._must(ABORTED, asked.aborted and prefix, who)
        else:
            reason = "stop" if asked.right[-1] == END_TOKEN else "length"
            self._must(TOKENS, asked.tokens == asked.right and finished.reason == reason, who)

    async def _check_rest(self) -> None:
        open_ = [asked.request_id for asked in self._asked.values() if not asked.over]
        self._must(ONCE, not open_, f"{', '.join(open_)} never ended")
        delivered = self.stage.node.delivered
        for _ in range(100):
            await asyncio.sleep(0)
        said = self.stage.node.delivered - delivered
        self._must(REST, said == 0, f"{said} messages went round with nothing to do")
        pool = await self.stage.ask(BLOCKS, GetPoolStatistics())
        self._must(REST, pool.blocks_held == 0, f"{pool.blocks_held} blocks are held")
