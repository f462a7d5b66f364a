"""A scheduler with a pool, moved by hand, event by event."""

from __future__ import annotations

from collections import defaultdict

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.scheduler.backlog import Limits
from pageant.actors.scheduler.core import BLOCKS, DETOKENIZER, EXECUTOR, SchedulerCore
from pageant.actors.scheduler.policies import FirstComeFirstServed
from pageant.protocol.allocation import Assigned
from pageant.protocol.arrays import int32
from pageant.protocol.sampling import RequestOutputKind, SamplingParams
from pageant.protocol.serving import Abort, Submit
from pageant.protocol.stepping import ExecutorReady, LateTokens, StepResult

END = 2
FINAL = {"output_kind": RequestOutputKind.FINAL_ONLY}


class Scene:
    """A scheduler, a pool, and whoever else is needed, moved by hand."""

    def __init__(self, *, num_blocks=16, seqs=4, budget=16, longest=32, policy=None, ahead=False, **limits):
        limits = Limits(seqs, budget, longest, frozenset({END}), async_scheduling=ahead, **limits)
        self.core = SchedulerCore(policy or FirstComeFirstServed(), limits)
        self.num_blocks = num_blocks
        self.allocation = Allocation(BlockPool(num_blocks), 4)
        self.ahead = ahead
        self.told = defaultdict(list)
        self.ends = {}
        self.names = {}
        self.tokens = {}

    def ready(self, epoch=1, **changes):
        sizes = {"num_blocks": self.num_blocks, "block_size": 4, "max_num_seqs": 4, "max_model_len": 32}
        self.sizes = sizes | changes
        self.core.executor_ready(ExecutorReady(epoch=epoch, device="", dtype="", **self.sizes))
        self.core.pool_ready(epoch, manager=1)
        return self

    def submit(self, name, prompt, *, now=0.0, priority=0, tenant="", deadline=None, resume=None, **params):
        params = SamplingParams(**({"temperature": 0.0, "ignore_eos": True} | params))
        self.core.submit(
            Submit(
                request_id=name,
                frontend="f",
                prompt_token_ids=int32(prompt),
                params=params,
                priority=priority,
                tenant=tenant,
                deadline=deadline,
                resume=resume,
            ),
            now,
        )

    def abort(self, *names):
        self.core.abort(Abort(frontend="f", request_ids=names))

    def out(self, address):
        """The messages for one of the others; what is for the detokenizer is read at once."""
        for target, message in self.core.take_outbox():
            if target == DETOKENIZER:
                self.read(message)
            else:
                self.told[target].append(message)
                assert self.ahead or target == address, f"{target} is told {message}"
        self.core.check_integrity()
        return self.told.pop(address, [])

    def read(self, batch):
        for opened in batch.opened:
            self.names[opened.serial] = opened.request_id
            self.tokens[opened.request_id] = opened.token_ids.tolist()
        position = 0
        for index, (serial, count) in enumerate(zip(batch.serials.tolist(), batch.counts.tolist())):  # noqa: B905
            self.tokens[self.names[serial]] += batch.token_ids.tolist()[position : position + count]
            position += count
            if index in batch.finished:
                assert self.names[serial] not in self.ends
                self.ends[self.names[serial]] = batch.finished[index]
        self.core.acknowledged(batch.number)

    def assign(self):
        """Lets the block manager answer; returns what it was asked and the plan, if there is one."""
        (asked,) = self.out(BLOCKS)
        computing = len(self.core.planner.computing)
        self.core.assigned(self.allocation.assign(asked))
        self.allocation.check_integrity()
        return asked, self.plan() if len(self.core.planner.computing) > computing else None

    def plan(self):
        (plan,) = self.out(EXECUTOR)
        return plan

    def compute(self, plan, token=7, **told):
        """Answers a plan, with this token for each, or with those given."""
        rows = plan.rows[plan.draws]
        steps = told.get("num_steps", plan.num_steps)
        drawn = token if isinstance(token, list) else [token] * (steps * len(rows))
        self.core.stepped(
            StepResult(
                number=plan.number,
                epoch=plan.epoch,
                rows=rows,
                token_ids=int32(drawn),
                **{"seconds": 0.0, "num_steps": steps} | told,
            )
        )

    def late(self, plan, row, token=7):
        """The token comes that a plan draws for a row."""
        late = LateTokens(number=plan.number, epoch=plan.epoch, rows=int32([row]), token_ids=int32([token]))
        self.core.late_tokens(late)

    def step(self, token=7):
        _, plan = self.assign()
        if plan is not None:
            self.compute(plan, token)
        return plan

    def go_on(self, token=7, read=True):
        """Goes on until there is nothing to do; returns the plans. Unread batches are not acknowledged."""
        plans = []
        for _ in range(500):
            messages = self.core.take_outbox()
            if not messages:
                return plans
            for target, message in messages:
                if target == BLOCKS:
                    self.core.assigned(self.allocation.assign(message))
                elif target == EXECUTOR:
                    plans.append(message)
                    self.compute(message, token)
                elif read:
                    self.read(message)
            self.core.check_integrity()
        raise AssertionError("the scheduler does not come to rest")

    def plans(self):
        """All plans that are made now."""
        made = []
        while asked := self.out(BLOCKS):
            self.core.assigned(self.allocation.assign(asked[0]))
            made += self.out(EXECUTOR)
        return made

    def prefill(self):
        """Computes the first plan; returns those that are at hand then."""
        first, *others = self.plans()
        self.compute(first)
        return others + self.plans()

    def run_on(self, plans):
        """Computes these, and whatever is planned meanwhile."""
        plans = [*plans]
        while plans:
            self.compute(plans.pop(0))
            plans += self.plans()

    def rest(self, token=7):
        """Goes on until there is nothing to do, and nothing is held; returns how the requests ended."""
        self.go_on(token)
        assert self.allocation.statistics().blocks_held == 0
        return self.ends


def refuse(scene, epoch=1):
    (asked,) = scene.out(BLOCKS)
    scene.core.assigned(
        Assigned(
            step=asked.step,
            epoch=epoch,
            num_grown=0,
            grown_counts=int32(),
            grown_blocks=int32(),
            admitted=(),
            blocks_free=16,
            num_blocks=16,
        )
    )
