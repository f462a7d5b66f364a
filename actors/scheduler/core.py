"""The scheduler's core: events in, messages out; no I/O, no clock.

It counts in tokens. Each request has known and computed tokens, and a step gives each scheduled request some of
its uncomputed ones, within a budget. Prefill, chunked prefill, decode and recomputation after a preemption are
all this one case. `planning` decides what the next step computes, `results` takes its tokens, and
`open_requests` keeps the state of each request.
"""

from __future__ import annotations

from pageant.actors.scheduler.backlog import Limits
from pageant.actors.scheduler.open_requests import OpenRequests
from pageant.actors.scheduler.planning import Planner
from pageant.actors.scheduler.policies import Policy
from pageant.actors.scheduler.recovery import count_death
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.actors.scheduler.results import Results
from pageant.actors.scheduler.row_drafts import NO_ROW_DRAFTS, RowDrafts
from pageant.protocol.allocation import Assigned
from pageant.protocol.arrays import int32
from pageant.protocol.block_counts import tokens_held
from pageant.protocol.drafting import Proposed, Speculation
from pageant.protocol.lifecycle import PauseMode
from pageant.protocol.message import Message
from pageant.protocol.outputs import Stopped
from pageant.protocol.replicas import Move, Moved
from pageant.protocol.serving import Abort, Submit
from pageant.protocol.stepping import ExecutorReady, LateTokens, StepResult

EXECUTOR, BLOCKS, DETOKENIZER, DRAFTER = "executor/0", "blocks", "detokenizer", "drafter"

Outbox = list[tuple[str, Message]]


class SchedulerCore:
    """State of a scheduler: its requests, the steps under way, and the actors that serve them.

    Times (`now`) are seconds of the shell's clock.
    """

    def __init__(
        self,
        policy: Policy,
        limits: Limits,
        speculation: Speculation | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.policy, self.limits = policy, limits
        self.requests = OpenRequests(policy, limits, speculation, vocab_size)
        self.planner = Planner(policy, self.requests)
        self._results = Results(self.requests)
        self.counters, self.outputs = self.requests.counters, self.requests.outputs
        self.speculator = self.requests.speculator
        # The executor's incarnation; None while it is down.
        self._epoch: int | None = None
        # All executors up to this epoch are dead.
        self._epochs_gone = 0
        # The epoch of the block manager's pool; None while it is down.
        self._pool_epoch: int | None = None
        # The block manager's incarnation; only grows.
        self._manager = 0
        # Messages that the shell has not taken yet, in order, with their addresses.
        self._outbox: Outbox = []
        # Tokens of the step that was computed last.
        self.step_tokens = 0
        # Running requests free their memory as soon as no step is computed.
        self._releases = False

    # Requests.

    def submit(self, message: Submit, now: float = 0.0) -> None:
        """Take a request. One that can never be served ends at once, with the reason."""
        self.requests.now = now
        self.requests.submit(message)
        self._advance()

    def expire(self, now: float) -> None:
        """End the requests whose deadline has passed."""
        self.requests.now = now
        self.requests.expire()
        self._advance()

    @property
    def next_deadline(self) -> float | None:
        """Return the time at which `expire` has something to do, or None."""
        return self.requests.next_deadline

    def abort(self, message: Abort) -> None:
        """End requests at once, in any state. Unknown ones have ended already."""
        for request_id in message.request_ids:
            request = self.requests.named(message.frontend, request_id)
            if request is not None:
                prefilling = self.requests.running.is_prefilling(request)
                self.counters.count_abort(request, prefilling=prefilling)
                self.requests.end(request, "abort")
        self._advance(aborted=True)

    def move(self, message: Move) -> Moved:
        """End requests that go on at another replica, and return what their frontend is to know of them."""
        known: list[ScheduledRequest] = []
        unknown: list[str] = []
        for request_id in message.request_ids:
            request = self.requests.named(message.frontend, request_id)
            if request is None:
                unknown.append(request_id)
                continue
            known.append(request)
            self.counters.moved += 1
            self.requests.end(request, "abort", cause="moved")
        self._advance(aborted=True)
        return Moved(
            request_ids=tuple(request.request_id for request in known),
            deaths=int32([request.deaths for request in known]),
            died_at=int32([request.died_at for request in known]),
            unknown=tuple(unknown),
        )

    def frontend_gone(self, frontend: str) -> None:
        """Abort the requests of a frontend that died."""
        self.abort(Abort(frontend=frontend, request_ids=self.requests.of(frontend)))

    def stopped(self, message: Stopped) -> None:
        """Forget requests that the detokenizer ended at a stop string."""
        for serial in message.serials.tolist():
            request = self.requests.find(serial)
            if request is not None:
                self.requests.stopped(request)
        self._advance()

    # Pauses.

    def pause(self, mode: PauseMode, *, release: bool = False) -> None:
        """Plan no more steps, except for requests that `mode` lets go on. `is_at_rest` tells when no step is
        computed.

        Args:
            release: running requests then free their memory, and are recomputed after `resume`.
        """
        # In other modes no request is left running.
        self._releases = release and mode == "keep"
        self.requests.pause(mode)
        self._advance(aborted=mode == "abort")

    def resume(self) -> None:
        """End a pause, or the request for one."""
        self._releases = False
        self.requests.resume()
        self.planner.retry()
        self._advance()

    @property
    def paused(self) -> PauseMode | None:
        """Return the mode of the pause that was asked for, or None."""
        return self.requests.paused

    @property
    def is_at_rest(self) -> bool:
        """Tell whether a pause is complete: no step is computed, ended requests are reported, and released
        blocks are free.
        """
        if self.paused is None or not self.planner.is_idle or self._releases:
            return False
        drained = self.paused != "wait" or len(self.requests) == self.requests.waiting.num_held
        return drained and not (self._is_served and self.requests.block_updates.freed)

    @property
    def _is_served(self) -> bool:
        """Tell whether executor and block manager are up, and of one epoch."""
        return self._epoch is not None and self._epoch == self._pool_epoch

    # One step.

    def _advance(self, *, aborted: bool = False) -> None:
        """Begin a step, if all actors that take part in it are ready."""
        if self._releases and self.planner.is_idle:
            self._releases = False
            self.requests.release_running()
        if self._is_served and self.outputs.stream.open:
            assert self._epoch is not None, "it is served"
            cut = self.planner.cut_short(self._epoch, aborted=aborted)
            if cut is not None:
                self._outbox.append((EXECUTOR, cut))
            assign = self.planner.begin(self._epoch, self._manager)
            if assign is not None:
                self._outbox.append((BLOCKS, assign))

    def assigned(self, message: Assigned, now: float = 0.0) -> None:
        """Plan the step that the block manager granted."""
        self.requests.now = now
        exchange = self.planner.exchange
        if exchange is None or message.step != exchange.step:
            # The step was cancelled meanwhile.
            return
        if message.epoch != self._epoch:
            # The answer is about another pool. The event that replaced ours is on its way, and begins the next step.
            self.planner.cancel_exchange()
            return
        plan = self.planner.granted(message)
        if plan is not None:
            self._outbox.append((EXECUTOR, plan))
        self._advance()

    def stepped(self, message: StepResult, now: float = 0.0) -> None:
        """Take the tokens that a step sampled."""
        self.requests.now = now
        if message.epoch != self._epoch:
            return
        step = self.planner.computed(message.number, message.num_steps, message.seconds)
        if step is None:
            # The step was cancelled meanwhile.
            return
        self.step_tokens = step.chunks.num_tokens
        self._results.take(step, message)
        if self.speculator is not None:
            propose = self.speculator.stepped(step.chunks, message, now)
            if propose is not None:
                self._outbox.append((DRAFTER, propose))
        self.requests.release_survivor()
        self._advance()

    def late_tokens(self, message: LateTokens, now: float = 0.0) -> None:
        """Take tokens that a step deferred."""
        self.requests.now = now
        if message.epoch == self._epoch:
            self._results.take_late(message)
            self.planner.retry()
            self._advance()

    def acknowledged(self, up_to: int) -> None:
        """Note that the detokenizer has processed our batches up to a number."""
        self.outputs.stream.acknowledge(up_to)
        self._advance()

    def take_outbox(self) -> Outbox:
        """Return the messages to send, in order."""
        if self.outputs and self.outputs.stream.open:
            self._outbox.append((DETOKENIZER, self.outputs.take()))
        outbox, self._outbox = self._outbox, []
        return outbox

    # Drafts.

    def proposed(self, message: Proposed, now: float = 0.0) -> None:
        """Take drafts that have come."""
        if self.speculator is not None:
            self._take_drafts(self.speculator.proposed(message, now))

    def drafts_late(self, now: float) -> None:
        """Continue without drafts for requests that have waited too long."""
        if self.speculator is not None:
            self._take_drafts(dict.fromkeys(self.speculator.late(now), NO_ROW_DRAFTS))

    def drafter_gone(self) -> None:
        """Continue without drafts: the drafter died."""
        if self.speculator is not None:
            self._take_drafts(dict.fromkeys(self.speculator.drafter_down(), NO_ROW_DRAFTS))

    def _take_drafts(self, drafts: dict[int, RowDrafts]) -> None:
        assert self.speculator is not None
        for serial, found in drafts.items():
            request = self.requests.find(serial)
            if request is not None:
                self.speculator.came(request, found)
        if drafts:
            self.planner.retry()
        self._advance()

    # Those who serve them, coming and going.

    def executor_ready(self, event: ExecutorReady) -> None:
        """Start with an executor of a new epoch, whose memory and batch are empty."""
        if event.epoch <= max(self._epoch or 0, self._epochs_gone):
            return
        if self._epoch is not None:
            self.executor_gone(self._epoch)
        self._epoch = event.epoch
        self.requests.weight_version = event.weight_version
        self.planner.reset(min(event.max_num_seqs, self.limits.max_num_seqs), event)
        pool_tokens = tokens_held(
            *(event.num_blocks, event.block_size, event.windows, event.num_states),
            chunk=self.limits.max_num_batched_tokens,
        )
        longest = min(self.limits.max_model_len, event.max_model_len, pool_tokens)
        if event.whole_prompts:
            longest = min(longest, self.limits.max_num_batched_tokens)
        self.requests.limit(longest)
        self._advance()

    def executor_gone(self, epoch: int, *, died: bool = True) -> bool:
        """Take back the requests that an executor had: its memory is lost.

        Args:
            died: it died, rather than was swapped; one of the requests may be the cause.

        Returns:
            Whether requests are charged with its death.
        """
        self._epochs_gone = max(self._epochs_gone, epoch)
        if self._epoch is None or epoch < self._epoch:
            # The message is late: the successor is up already.
            return False
        self._epoch = None
        # By serial: the position up to which steps under way compute. A later step goes further.
        computing: dict[int, int] = {}
        for step in self.planner.computing:
            computing.update(zip(step.chunks.serials.tolist(), step.chunks.ends.tolist(), strict=True))
        for request in self.requests.running:
            if died and request.serial in computing:
                count_death(request, computing[request.serial])
        tried = self.requests.waiting.quarantine.running_alone
        self.planner.lose_memory()
        if died and tried is not None and tried.serial in computing:
            self.requests.end(
                tried,
                "error",
                message="the executor died again and again while it computed this request, at last with no other",
                cause="failure",
            )
        return died and bool(computing)

    def pool_ready(self, epoch: int, manager: int) -> None:
        """Start with the pool of a block manager of that incarnation, for that epoch."""
        if manager < self._manager:
            # The message is late: the successor is up already.
            return
        if manager > self._manager and self._pool_epoch is not None:
            self.pool_gone(self._manager)
        self._manager, self._pool_epoch = manager, epoch
        self._advance()

    def stored_arrived(self, manager: int) -> None:
        """Ask for admissions again that waited for a store's blocks."""
        if manager == self._manager:
            self.planner.stored_arrived()
            self._advance()

    def pool_gone(self, manager: int) -> None:
        """Queue all running requests again: their block tables are lost with the manager."""
        if manager < self._manager:
            return
        self._pool_epoch = None
        self.planner.lose_memory()

    def detokenizer_gone(self) -> None:
        """Open every request again at the next detokenizer.

        A request whose end the former one kept to itself is submitted again by its frontend.
        """
        self.outputs.reopen(self.requests)
        self.counters.reopened += len(self.requests)
        self._advance()

    # Looking in.

    @property
    def num_open(self) -> int:
        """Return the number of requests that have not ended."""
        return len(self.requests)

    @property
    def num_waiting(self) -> int:
        """Return the number of requests that hold no memory."""
        exchange, waiting = self.planner.exchange, self.requests.waiting
        return len(waiting) + waiting.num_held + (len(exchange.admitting) if exchange else 0)

    @property
    def num_running(self) -> int:
        """Return the number of requests that hold memory."""
        return len(self.requests.running)

    def count(self) -> dict[str, int]:
        """Return the counters, by name."""
        return vars(self.counters) | ({} if self.speculator is None else self.speculator.count())

    def check_integrity(self) -> None:
        """Assert the invariants."""
        self.requests.check_integrity(self.planner.under_way())
