"""Planning of steps.

A step is an exchange with the block manager, and then a plan that the executor computes:

    ──Assign──▶ exchange ──Assigned, StepPlan──▶ computing ──StepResult──▶

There is one exchange at a time. How many plans may be under way, and how many steps each has, is `run_ahead`'s.

The step computes what the block manager granted even if the request was aborted meanwhile: its blocks have
hashes by then, and other requests may share them.
"""

from __future__ import annotations

from collections import deque

from pageant.actors.scheduler.open_requests import OpenRequests
from pageant.actors.scheduler.plans import Computing, Exchange, admissions, build_assign, build_plan
from pageant.actors.scheduler.policies import Policy, victim_of
from pageant.actors.scheduler.request import ScheduledRequest, State
from pageant.actors.scheduler.run_ahead import RunAhead
from pageant.actors.scheduler.scheduled_rows import ScheduledRows
from pageant.protocol.allocation import Assign, Assigned
from pageant.protocol.arrays import int32
from pageant.protocol.stepping import CutShort, ExecutorReady, StepPlan
from pageant.protocol.verification import NO_DRAFTS

# Expected tokens of the admissions asked for in a step, as a multiple of the token budget.
OVERASK = 2


class UncachedShare:
    """Estimates the share of a prompt that is not cached, from recent admissions weighted by length."""

    _KEEP = 0.8

    def __init__(self) -> None:
        # A weak prior, which decays.
        self._tokens, self._uncached = 4.0, 1.0

    def saw(self, num_tokens: int, num_cached: int) -> None:
        """Record an admission of `num_tokens` tokens, of which `num_cached` were cached."""
        self._tokens = self._KEEP * self._tokens + num_tokens
        self._uncached = self._KEEP * self._uncached + num_tokens - num_cached

    def expected(self, num_tokens: int) -> int:
        """Return the expected number of tokens to compute of a request of `num_tokens` tokens: at least one."""
        return max(1, round(num_tokens * self._uncached / self._tokens))


class Planner:
    """The steps under way, and the decision what the next one computes.

    Belongs to the scheduler's event loop, as the whole core does.
    """

    def __init__(self, policy: Policy, requests: OpenRequests) -> None:
        self._policy, self._requests, self._limits = policy, requests, requests.limits
        self._running, self._waiting, self._speculator = (
            requests.running,
            requests.waiting,
            requests.speculator,
        )
        self._counters, self._block_updates = requests.counters, requests.block_updates
        self._chunk_max = self._limits.long_prefill_token_threshold or self._limits.max_num_batched_tokens
        # The exchange with the block manager that is not answered yet, or None. There is at most one.
        self.exchange: Exchange | None = None
        # Steps whose plans the executor has, in order; the first is computed now.
        self.computing: deque[Computing] = deque()
        # The number of the last exchange.
        self._step = 0
        # The number of the last plan for this executor.
        self._plan_number = 0
        # All exchanges up to this number have been computed or cancelled.
        self._computed_step = 0
        self._run_ahead = RunAhead(self._limits)
        # The last exchange granted nothing. Another would be refused too until a step has been computed.
        self._refused = False
        # Growth was refused. The next exchange admits no request.
        self._memory_short = False
        # An admission was refused because blocks were missing.
        self._pool_full = False
        # An admission waits for blocks from a store, or for those that copies hold, and all later ones with it.
        self._awaits_stored = False
        self._num_groups, self._block_size = 1, 1
        # Each prompt is computed whole, in one step.
        self._whole_prompts = False
        # Free blocks of the pool, as of the last exchange.
        self._blocks_free = 0
        self._uncached = UncachedShare()

    def reset(self, num_rows: int, executor: ExecutorReady) -> None:
        """Start with a new executor: its batch is empty, and its plans are numbered from one."""
        self._plan_number = 0
        self._run_ahead.reset(multi_step=executor.multi_step and self._speculator is None)
        self._num_groups, self._block_size = len(executor.windows), executor.block_size
        self._whole_prompts = executor.whole_prompts
        threshold = 0 if executor.whole_prompts else self._limits.long_prefill_token_threshold
        self._chunk_max = threshold or self._limits.max_num_batched_tokens
        self._running.reset(num_rows, executor.stages)
        if self._speculator is not None:
            self._speculator.reset(num_rows)

    # What is asked for.

    def begin(self, epoch: int, manager: int) -> Assign | None:
        """Begin a step if there is something to compute and nothing to wait for. Return its request to the
        block manager.
        """
        regime = self._run_ahead.regime(
            self.computing,
            lock_step=self._speculator is not None and self._speculator.holds_all,
            quarantine=self._waiting.quarantine.active,
        )
        rules = self._run_ahead.rules(regime)
        if self.exchange is not None or len(self.computing) > rules.depth_of(self._running.waves.count):
            return None
        if rules.awaits_drafts and self._awaits_drafts:
            return None
        if self._refused and not self._block_updates.freed and (self.computing or self._waits_for_tokens):
            return None
        if (rules.continues and self._run_ahead.stopped) or (not rules.admits and len(self._waiting)):
            return None
        still = self._requests.plans_nothing
        budget = 0 if still else self._limits.max_num_batched_tokens
        growing = ScheduledRows.of() if still else self._running.choose(budget, self._chunk_max)
        budget -= growing.num_tokens
        admitting = [] if self._memory_short or self._awaits_stored or still else self._choose_waiting(budget)
        if rules.continues and not (len(growing) and self._may_continue(growing)):
            # It may not be known yet how far requests that have just ended were computed.
            return None
        if not (admitting or self._memory_short or len(self._waiting)):
            growing = growing.repeated(self._num_steps(growing))
        self._memory_short = False
        if not (len(growing) or admitting or self._block_updates.freed):
            return None
        self._running.enter(growing)
        self._step += 1
        self.exchange = Exchange(self._step, growing, admitting, rules.continues)
        return build_assign(
            self.exchange,
            growing.ends if self._speculator is None else self._speculator.room_for(growing),
            epoch,
            manager,
            self._block_updates.take(),
            computed_step=self._computed_step,
            budget=budget,
            chunk_max=self._limits.max_num_batched_tokens,
            long_chunk_max=self._chunk_max,
        )

    def _may_continue(self, growing: ScheduledRows) -> bool:
        """Tell whether a step of these rows may depend on the last plan under way: it is skipped if that one
        ends early.
        """
        return bool(growing.draws.all()) and self.computing[-1].chunks.has_rows(growing.rows)

    def _num_steps(self, growing: ScheduledRows) -> int:
        """Return the number of steps of a plan for these rows: 1 unless there seem to be blocks for more."""
        most = self._run_ahead.num_steps_max(len(growing))
        block_groups = -(-most // self._block_size) * len(growing)
        if block_groups * self._num_groups > self._blocks_free:
            return 1
        return self._running.num_steps(growing, most)

    def cut_short(self, epoch: int, *, aborted: bool = False) -> CutShort | None:
        """Return the message that ends multi-step plans early, or None if none is needed.

        Plans are cut short if a request waits, if nothing is to be computed, or if the last running request was
        `aborted`.
        """
        wanted = len(self._waiting) or self._requests.plans_nothing or (aborted and not len(self._running))
        if not wanted or not self._run_ahead.cut(self._plan_number, self.computing):
            return None
        self._counters.plans_cut += 1
        return CutShort(number=self._plan_number, epoch=epoch)

    def stored_arrived(self) -> None:
        """Ask for admissions again."""
        self._awaits_stored = self._refused = False

    def retry(self) -> None:
        """Allow another exchange: a running request has got what it waited for, whatever was refused before."""
        self._refused = False

    @property
    def _waits_for_tokens(self) -> bool:
        """Tell whether running requests wait for drafts or late tokens.

        Their memory is not freed meanwhile, and another exchange would be refused again.
        """
        return self._awaits_drafts or self._requests.deferrals.any_awaited

    @property
    def _awaits_drafts(self) -> bool:
        """Tell whether running requests wait for a drafter."""
        return self._speculator is not None and self._speculator.awaits_drafts

    def _choose_waiting(self, budget: int) -> list[ScheduledRequest]:
        """Return the waiting requests that ask for admission.

        The tokens that each needs are only known with its cached prefix. More requests are therefore asked for
        than the budget is expected to hold, and the manager admits as many as fit. While the pool is full and
        nothing is freed, only the first is asked for: the others would be refused with it.
        """
        if self._waiting.quarantine.active:
            return [] if len(self._running) or self.computing else self._waiting.take_suspect()
        count = min(len(self._running.free_rows), max(0, budget)) if len(self._waiting) else 0
        if self._pool_full and not self._block_updates.freed:
            count = min(count, 1)
        if self._whole_prompts:
            return self._choose_whole(count, budget)
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

    def _choose_whole(self, count: int, budget: int) -> list[ScheduledRequest]:
        """Return the waiting requests, at most `count`, that a step of `budget` tokens computes from end to end."""
        chosen: list[ScheduledRequest] = []
        for request in self._waiting.take(count, 0) if count else ():
            if request.num_tokens > budget:
                self._put_back(request)
                break
            chosen.append(request)
            budget -= request.num_tokens
        return chosen

    # What is granted.

    def granted(self, message: Assigned) -> StepPlan | None:
        """Return the plan of what the block manager granted; None if that is nothing."""
        exchange = self.exchange
        assert exchange is not None and exchange.step == message.step, "these are the grants of the exchange"
        chunks, new = self._take_grants(exchange, message)
        self._preempt_if_short(exchange, message)
        stuck = self._find_stuck(exchange, message)
        self.exchange, self._blocks_free = None, message.blocks_free
        self._awaits_stored = message.awaits_stored
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

    def _take_grants(
        self, exchange: Exchange, message: Assigned
    ) -> tuple[ScheduledRows, list[ScheduledRequest]]:
        """Return the scheduled rows of this step, and the requests that are new in the batch."""
        chunks, _ = exchange.growing.split_at(message.num_grown)
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
        """Give a request a row; an aborted request too, for the one step that it was granted."""
        self._counters.tokens_cached += cached
        if request.state is State.ASKED:
            request.state = State.RUNNING
            if request.admitted_at is None:
                request.num_cached = cached
                request.admitted_at = self._requests.now
            request.draw_with(self._requests.weight_version)
            self._requests.outputs.update_facts(request)
        self._running.admit(request, cached)
        if self._speculator is not None:
            self._speculator.admit(request)

    def _put_back(self, request: ScheduledRequest) -> None:
        """Queue a request again that was not admitted. An aborted one has ended by now, and its tenant is
        refunded.
        """
        if request.state is State.ASKED:
            self._waiting.put_back(request)
        elif request.state is State.ENDED:
            self._waiting.refund(request)

    def _preempt_if_short(self, exchange: Exchange, message: Assigned) -> None:
        """Preempt the policy's victim if growth was refused."""
        _, refused = exchange.growing.split_at(message.num_grown)
        if not len(refused):
            return
        # A multi-step plan asks for more than its first step needs.
        if refused.num_steps > 1:
            self._memory_short = True
            self._requests.leave(refused)
            return
        self._counters.growth_refused += len(refused)
        self._memory_short = True
        # Only a request that no step names can be preempted. Growth is refused from the end of the policy's order,
        # so that the policy's victim is normally among the refused. One that is still computed can be next time.
        self._requests.leave(refused)
        # Rows with late tokens may have waited only for this step to end.
        self._requests.deferrals.settle()
        if self._speculator is not None and self._speculator.make_room(refused):
            return
        candidates = self._running.in_no_step(refused.rows.tolist())
        if candidates:
            self._requests.preempt(victim_of(self._policy, candidates))

    def _find_stuck(self, exchange: Exchange, message: Assigned) -> ScheduledRequest | None:
        """Return the first admission if it can never be granted: it was refused although no other request holds
        memory.
        """
        holding = len(exchange.growing) + len(message.admitted) + len(self._running)
        if holding or self._block_updates.freed or self.computing or message.awaits_stored:
            return None
        first = exchange.admitting[0] if exchange.admitting else None
        return first if first is not None and first.state is State.WAITING else None

    # What is computed.

    def _plan(
        self, chunks: ScheduledRows, new: list[ScheduledRequest], granted: Assigned, continues: bool
    ) -> StepPlan:
        self._plan_number += 1
        drafts, wanted = (NO_DRAFTS, int32()) if self._speculator is None else self._speculator.plan(chunks)
        freed_rows = self._running.take_freed_rows()
        plan = build_plan(
            self._plan_number, granted, freed_rows, chunks, new, drafts, wanted, continues=continues
        )
        self._running.planned(chunks)
        self._block_updates.sampled += self._requests.deferrals.planned(chunks.rows)
        self._run_ahead.planned(continues=continues)
        self._counters.steps += chunks.num_steps
        self._counters.steps_ahead += bool(self.computing)
        self._counters.steps_together += chunks.num_steps * (chunks.num_steps > 1)
        self.computing.append(Computing(granted.step, self._plan_number, chunks, drafts, continues))
        return plan

    def computed(self, plan: int, num_steps: int, seconds: float) -> Computing | None:
        """Record that a plan is over, after `num_steps` steps, which took `seconds`. None if it was cancelled
        meanwhile.
        """
        if not self.computing or plan != self.computing[0].plan:
            return None
        step = self.computing.popleft()
        self._computed_step = step.step
        self._run_ahead.computed(num_steps, step.chunks.num_steps, seconds)
        self._refused = False
        return step

    def cancel_exchange(self) -> None:
        """Cancel the present exchange: what was asked for will not be computed."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            for request in exchange.admitting:
                self._put_back(request)
            self._requests.leave(exchange.growing)

    def lose_memory(self) -> None:
        """Cancel all steps and queue all running requests again: their KV is lost."""
        self.cancel_exchange()
        while self.computing:
            chunks = self.computing.popleft().chunks
            self._running.computed(chunks)
            self._requests.leave(chunks)
        self._requests.lose_memory()
        self._refused = self._memory_short = self._pool_full = self._awaits_stored = False

    @property
    def is_idle(self) -> bool:
        """Tell whether no step is asked for or computed."""
        return self.exchange is None and not self.computing

    def under_way(self) -> list[ScheduledRows]:
        """Return the scheduled rows of each step that is asked for or computed."""
        asked = [] if self.exchange is None else [self.exchange.growing]
        return [step.chunks for step in self.computing] + asked
