"""What each step computes.

A step is an exchange with the block manager, and then a plan that the executor computes:

    ──Assign──▶ exchange ──Assigned, StepPlan──▶ computing ──StepResult──▶

There is one exchange at a time, and while a step is computed the next is planned (`async_scheduling`): a
request that decodes will have a token, and nothing of the plan depends on which. A request that turns out
to have ended costs one wasted row. Without `async_scheduling`, each step waits for the last one's tokens.

From a step's tokens to the next plan the way is by scheduler, block manager and two processes, which wait for cores on
which the step computes. Where steps take hardly longer than that, devices would wait for plans: then two are made ahead
(`short_step_seconds`).

What the block manager grants is computed in that very step, also when the request has been aborted
meanwhile: its blocks are named by then, and others may use them.

While nobody waits, and nobody is to know of each token as it comes, a plan is of several steps
(`max_steps_per_plan`): what goes on between two steps then does so once for all of them. Behind such a plan there is
only what `continues` it, until it is known how far it came. Who comes meanwhile has it cut short.
"""

from __future__ import annotations

import math
from collections import deque

from pageant.actors.scheduler.open_requests import OpenRequests
from pageant.actors.scheduler.plans import Computing, Exchange, admissions, build_assign, build_plan
from pageant.actors.scheduler.policies import Policy
from pageant.actors.scheduler.request import ScheduledRequest, State
from pageant.actors.scheduler.running import Chunks
from pageant.protocol.allocation import Assign, Assigned
from pageant.protocol.arrays import int32
from pageant.protocol.stepping import CutShort, ExecutorReady, StepPlan
from pageant.protocol.verification import NO_DRAFTS

OVERASK = 2  # admissions asked for per step, in tokens that are expected to be computed, over the budget


class UncachedShare:
    """How much of a prompt is to be computed, by those that were admitted last, each counting by its length."""

    _KEEP = 0.8

    def __init__(self) -> None:
        self._tokens, self._uncached = 4.0, 1.0  # soon forgotten

    def saw(self, num_tokens: int, num_cached: int) -> None:
        """A request of so many tokens was admitted, of which some were cached."""
        self._tokens = self._KEEP * self._tokens + num_tokens
        self._uncached = self._KEEP * self._uncached + num_tokens - num_cached

    def expected(self, num_tokens: int) -> int:
        """Of a request of so many tokens, those to be computed: one at least."""
        return max(1, round(num_tokens * self._uncached / self._tokens))


class Planner:
    """The steps at hand, and what the next one is to be."""

    def __init__(self, policy: Policy, requests: OpenRequests) -> None:
        self._policy, self._requests, self._limits = policy, requests, requests.limits
        self._running, self._waiting, self._speculator = (
            requests.running,
            requests.waiting,
            requests.speculator,
        )
        self._counters, self._news = requests.counters, requests.news
        self._chunk_max = self._limits.long_prefill_token_threshold or self._limits.max_num_batched_tokens
        self.exchange: Exchange | None = None
        self.computing: deque[Computing] = deque()  # the first is the one that is computed now
        self._step = 0
        self._plan_number = 0
        self._computed_step = 0
        self._step_seconds = math.inf  # that the last one took
        self._refused = False  # all that was asked for; nothing changes before a step has been computed
        self._memory_short = False  # growth was refused: nobody is admitted before that has passed
        self._pool_full = False  # an admission was refused for want of blocks
        self._steps_max = 1  # of a plan
        self._num_groups, self._block_size = 1, 1
        self._blocks_free = 0  # when it was last told
        self._cut = 0  # the plans up to this one are being cut short
        self._stopped = False  # whether the last plan to come back stopped short: nothing continues it
        self._uncached = UncachedShare()

    def reset(self, num_rows: int, executor: ExecutorReady) -> None:
        """A new executor: its batch is empty, and its plans are counted from one."""
        self._plan_number = self._cut = 0
        several = executor.multi_step and self._limits.async_scheduling and self._speculator is None
        self._steps_max = self._limits.max_steps_per_plan if several else 1
        self._num_groups, self._block_size = len(executor.windows), executor.block_size
        self._running.reset(num_rows)
        if self._speculator is not None:
            self._speculator.reset(num_rows)

    # What is asked for.

    def begin(self, epoch: int, manager: int) -> Assign | None:
        """Begins a step if there is something to compute, and nothing is in its way."""
        in_turn = self._speculator is not None and self._speculator.holds_all
        ahead = 0 if in_turn else self._steps_ahead
        if self.exchange is not None or len(self.computing) > ahead or (in_turn and self._awaits_drafts):
            return None
        if self._refused and not self._news.freed and (self.computing or self._holds_back):
            return None
        continues = self._goes_several_steps
        if continues and (self._stopped or len(self._waiting)):
            return None
        still = self._requests.stand_still
        budget = 0 if still else self._limits.max_num_batched_tokens
        growing = Chunks.of() if still else self._running.choose(budget, self._chunk_max)
        budget -= growing.num_tokens
        admitting = [] if self._memory_short or still else self._choose_waiting(budget)
        if continues and not (len(growing) and self._may_continue(growing)):
            return None  # of those who have just ended it may not be known yet how far they were computed
        if not (admitting or self._memory_short or len(self._waiting)):
            growing = growing.repeated(self._num_steps(growing))
        self._memory_short = False
        if not (len(growing) or admitting or self._news.freed):
            return None
        self._running.enter(growing)
        self._step += 1
        self.exchange = Exchange(self._step, growing, admitting, continues)
        return build_assign(
            self.exchange,
            growing.ends if self._speculator is None else self._speculator.room_for(growing),
            epoch,
            manager,
            self._news.take(),
            computed_step=self._computed_step,
            budget=budget,
            chunk_max=self._limits.max_num_batched_tokens,
            long_chunk_max=self._chunk_max,
        )

    @property
    def _goes_several_steps(self) -> bool:
        """Whether a plan is at hand that may come less far than it says."""
        return any(step.may_stop_short for step in self.computing)

    def _may_continue(self, growing: Chunks) -> bool:
        """Whether this can be computed after the last plan at hand, or not at all if that stops short."""
        return bool(growing.draws.all()) and self.computing[-1].chunks.has_rows(growing.rows)

    def _num_steps(self, growing: Chunks) -> int:
        """How many steps these are to go without a word in between, if there seem to be blocks for all."""
        most = min(self._steps_max, self._limits.max_num_batched_tokens // max(1, len(growing)))
        stretches = -(-most // self._block_size) * len(growing)
        if stretches * self._num_groups > self._blocks_free:
            return 1
        return self._running.num_steps(growing, most)

    def cut_short(self, epoch: int, *, aborted: bool = False) -> CutShort | None:
        """What makes plans of several steps end soon, if any is at hand and somebody waits, or nothing is to be
        computed; or if some were `aborted`, and nobody is left for whom they go on."""
        if self._cut == self._plan_number or not self._goes_several_steps:
            return None
        wanted = len(self._waiting) or self._requests.stand_still or (aborted and not len(self._running))
        if not wanted:
            return None
        self._cut = self._plan_number
        self._counters.plans_cut += 1
        return CutShort(number=self._cut, epoch=epoch)

    @property
    def _steps_ahead(self) -> int:
        """How many may be planned while one is computed."""
        if not self._limits.async_scheduling or self._waiting.quarantine.active:
            return 0
        if self._goes_several_steps:
            return 1
        return 2 if self._step_seconds < self._limits.short_step_seconds else 1

    def retry(self) -> None:
        """A running request has got what held it back: it is not to wait for others, whatever was refused before."""
        self._refused = False

    @property
    def _holds_back(self) -> bool:
        """Whether running requests wait for something else than a step. What they hold is not freed meanwhile, and to
        ask for more would be refused again."""
        return self._awaits_drafts or self._requests.deferrals.any_awaited

    @property
    def _awaits_drafts(self) -> bool:
        """Whether running requests are held back by a drafter."""
        return self._speculator is not None and self._speculator.awaits_drafts

    def _choose_waiting(self, budget: int) -> list[ScheduledRequest]:
        """The waiting requests that are put to the block manager.

        How much each needs is only known with its cached prefix, so more are asked for than the budget is expected to
        hold; the manager admits as many as fit. While the pool is full and nothing is freed, only the first is asked
        for: the others would be refused with it.
        """
        if self._waiting.quarantine.active:
            return [] if len(self._running) or self.computing else self._waiting.take_suspect()
        count = min(len(self._running.free_rows), max(0, budget)) if len(self._waiting) else 0
        if self._pool_full and not self._news.freed:
            count = min(count, 1)
        chosen: list[ScheduledRequest] = []
        tokens = budget * OVERASK
        if not count:
            return chosen
        for request in self._waiting.take(count, self._running.num_long_prefills()):
            chosen.append(request)
            tokens -= self._uncached.expected(request.num_tokens)
            if tokens <= 0:
                break
        return chosen

    # What is granted.

    def granted(self, message: Assigned) -> StepPlan | None:
        """The plan of what the block manager granted; None, if that is nothing."""
        exchange = self.exchange
        assert exchange is not None and exchange.step == message.step, "these are the grants of the exchange"
        chunks, new = self._take_grants(exchange, message)
        self._preempt_if_short(exchange, message)
        stuck = self._find_stuck(exchange, message)
        self.exchange, self._blocks_free = None, message.blocks_free
        self._refused = not len(chunks) and bool(len(exchange.growing) or exchange.admitting)
        plan = self._plan(chunks, new, message, exchange.continues) if len(chunks) else None
        if stuck is not None:
            self._requests.end(
                stuck,
                "error",
                message=f"the KV-block manager refuses the {stuck.num_tokens} tokens of this request while "
                f"{message.blocks_free} of {message.num_blocks} blocks are free and no other request runs",
            )
        return plan

    def _take_grants(self, exchange: Exchange, message: Assigned) -> tuple[Chunks, list[ScheduledRequest]]:
        """The chunks of this step, and those of their requests that are new in the batch."""
        chunks, _ = exchange.growing.parted(message.num_grown)
        new = exchange.admitting[: len(message.admitted)]
        for request, grant in zip(new, message.admitted, strict=True):
            assert grant.serial == request.serial, "admissions are granted in order"
            self._uncached.saw(request.num_tokens, grant.num_cached_tokens)
            self._admit(request, grant.num_cached_tokens)
            self._counters.count_restored(request, grant.num_restored_tokens)
        if new:
            chunks += admissions(new, message.admitted)
        for request in exchange.admitting[len(new) :]:
            self._put_back(request)
            self._counters.admissions_refused += request.state is State.WAITING
        computed = chunks.num_tokens
        assert computed <= self._limits.max_num_batched_tokens, f"{computed} tokens are over the budget"
        refused = len(new) < len(exchange.admitting)
        self._pool_full = refused and computed < self._limits.max_num_batched_tokens
        self._counters.chunk_splits += len(chunks) - int(chunks.draws.sum())
        return chunks, new

    def _admit(self, request: ScheduledRequest, cached: int) -> None:
        """A request gets a row; an aborted one too, for the one step that it was granted."""
        self._counters.tokens_cached += cached
        if request.state is State.ASKED:
            request.state = State.RUNNING
            if request.admitted_at is None:
                request.num_cached = cached
                request.admitted_at = self._requests.now
            request.draw_with(self._requests.weight_version)
            self._requests.outputs.learned(request)
        self._running.admit(request, cached)
        if self._speculator is not None:
            self._speculator.admit(request)

    def _put_back(self, request: ScheduledRequest) -> None:
        """An admission that was not granted; an aborted request is gone by now."""
        if request.state is State.ASKED:
            self._waiting.put_back(request)
        elif request.state is State.ENDED:
            self._waiting.give_up(request)

    def _preempt_if_short(self, exchange: Exchange, message: Assigned) -> None:
        """Growth was refused: the policy's victim gives way."""
        _, refused = exchange.growing.parted(message.num_grown)
        if not len(refused):
            return
        if refused.num_steps > 1:  # they asked for more than they need
            self._memory_short = True
            self._requests.leave(refused)
            return
        self._counters.growth_refused += len(refused)
        self._memory_short = True
        # Only one that no step names can give way; growth is refused from the end of the policy's order,
        # so the policy's victim is normally among them. One that is still computed can be next time.
        self._requests.leave(refused)
        self._requests.deferrals.settle()  # that may have been all that a row waited for whose token came late
        if self._speculator is not None and self._speculator.make_room(refused):
            return
        candidates = self._running.in_no_step(refused.rows.tolist())
        if candidates:
            victim = self._policy.victim(candidates)
            if victim not in candidates:
                raise ValueError(
                    f"{type(self._policy).__name__}.victim returned {victim!r}, which is none of those it was given"
                )
            self._requests.preempt(victim)

    def _find_stuck(self, exchange: Exchange, message: Assigned) -> ScheduledRequest | None:
        """The first admission, if it was refused though nothing else holds memory or is about to free any:
        asking again would be answered the same."""
        holding = len(exchange.growing) + len(message.admitted) + len(self._running)
        if holding or self._news.freed or self.computing:
            return None
        first = exchange.admitting[0] if exchange.admitting else None
        return first if first is not None and first.state is State.WAITING else None

    # What is computed.

    def _plan(
        self, chunks: Chunks, new: list[ScheduledRequest], granted: Assigned, continues: bool
    ) -> StepPlan:
        self._plan_number += 1
        drafts, wanted = (NO_DRAFTS, int32()) if self._speculator is None else self._speculator.plan(chunks)
        freed_rows = self._running.take_freed_rows()
        plan = build_plan(
            self._plan_number, granted, freed_rows, chunks, new, drafts, wanted, continues=continues
        )
        self._running.planned(chunks)
        self._news.drawn += self._requests.deferrals.planned(chunks.rows)
        self._stopped &= continues
        self._counters.steps += chunks.num_steps
        self._counters.steps_ahead += bool(self.computing)
        self._counters.steps_together += chunks.num_steps * (chunks.num_steps > 1)
        self.computing.append(Computing(granted.step, self._plan_number, chunks, drafts, continues))
        return plan

    def computed(self, plan: int, num_steps: int, seconds: float) -> Computing | None:
        """The plan is over, after so many steps, which took so long. None, if it was given up meanwhile."""
        if not self.computing or plan != self.computing[0].plan:
            return None
        step = self.computing.popleft()
        self._computed_step, self._stopped = step.step, num_steps < step.chunks.num_steps
        if num_steps:
            self._step_seconds = seconds / num_steps
        self._refused = False
        return step

    def give_up_exchange(self) -> None:
        """What was asked for will not be computed."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            for request in exchange.admitting:
                self._put_back(request)
            self._requests.leave(exchange.growing)

    def lose_memory(self) -> None:
        """What was computed is lost, and what is being computed is not waited for: whoever runs goes back to
        the queue."""
        self.give_up_exchange()
        while self.computing:
            chunks = self.computing.popleft().chunks
            self._running.computed(chunks)
            self._requests.leave(chunks)
        self._requests.lose_memory()
        self._refused = self._memory_short = self._pool_full = False

    @property
    def is_idle(self) -> bool:
        """Whether no step is asked for or computed."""
        return self.exchange is None and not self.computing

    def at_hand(self) -> list[Chunks]:
        """Of each step that is asked for or computed."""
        asked = [] if self.exchange is None else [self.exchange.growing]
        return [step.chunks for step in self.computing] + asked
