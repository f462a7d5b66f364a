"""The scheduler's core: events in, messages out; no I/O, no clock.

It thinks in tokens: each request has known and computed tokens, and a step gives each scheduled request
some of its uncomputed ones, within a budget. Prefill, chunked prefill, decode and recomputation after a
preemption are all this one case. What the next step computes is decided in `planning`, what came of it is
taken in `results`, and where each request stands is kept in `open_requests`.
"""

from __future__ import annotations

from pageant.actors.scheduler.backlog import Limits
from pageant.actors.scheduler.guesses import NOTHING, Guess
from pageant.actors.scheduler.open_requests import OpenRequests
from pageant.actors.scheduler.planning import Planner
from pageant.actors.scheduler.policies import Policy
from pageant.actors.scheduler.recovery import count_death
from pageant.actors.scheduler.results import Results
from pageant.protocol.allocation import Assigned
from pageant.protocol.drafting import Proposed, Speculation
from pageant.protocol.lifecycle import PauseMode
from pageant.protocol.message import Message
from pageant.protocol.outputs import Stopped
from pageant.protocol.serving import Abort, Submit
from pageant.protocol.stepping import ExecutorReady, LateTokens, StepResult

EXECUTORS, BLOCKS, DETOKENIZER, DRAFTER = "executor/*", "blocks", "detokenizer", "drafter"

Outbox = list[tuple[str, Message]]


class SchedulerCore:
    """All requests of this scheduler, the steps at hand, and who is there to serve them."""

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
        self._epoch: int | None = None  # the executor's, while it is up
        self._epochs_gone = 0  # executors up to this epoch are dead
        self._pool_epoch: int | None = None  # the block manager's, while it is up
        self._manager = 0  # its incarnation
        self._outbox: Outbox = []
        self._releases = (
            False  # whether running requests are to give up their memory as soon as nothing is computed
        )

    # Requests.

    def submit(self, message: Submit, now: float = 0.0) -> None:
        """A request comes. One that can never be served ends at once, with the reason."""
        self.requests.now = now
        self.requests.submit(message)
        self._advance()

    def expire(self, now: float) -> None:
        """Ends the requests whose deadline has passed."""
        self.requests.now = now
        self.requests.expire()
        self._advance()

    @property
    def next_deadline(self) -> float | None:
        """When `expire` has something to do."""
        return self.requests.next_deadline

    def abort(self, message: Abort) -> None:
        """Ends requests at once, wherever they are. Unknown ones have ended already."""
        for request_id in message.request_ids:
            request = self.requests.named(message.frontend, request_id)
            if request is not None:
                prefilling = self.requests.running.is_prefilling(request)
                self.counters.count_abort(request, prefilling=prefilling)
                self.requests.end(request, "abort")
        self._advance(aborted=True)

    def frontend_gone(self, frontend: str) -> None:
        """Its requests have nobody to be for."""
        self.abort(Abort(frontend=frontend, request_ids=self.requests.of(frontend)))

    def stopped(self, message: Stopped) -> None:
        """The detokenizer ended requests at a stop string."""
        for serial in message.serials.tolist():
            request = self.requests.find(serial)
            if request is not None:
                self.requests.stopped(request)
        self._advance()

    # Pauses.

    def pause(self, mode: PauseMode, *, release: bool = False) -> None:
        """Plan nothing more, but what `mode` lets go on. `is_at_rest` says when nothing is computed any more.

        Args:
            release: running requests give up their memory then, and compute it again after `resume`.
        """
        self._releases = release and mode == "keep"  # of the other modes nothing is left that runs
        self.requests.pause(mode)
        self._advance(aborted=mode == "abort")

    def resume(self) -> None:
        """End a pause, or the wish for one."""
        self._releases = False
        self.requests.resume()
        self.planner.retry()
        self._advance()

    @property
    def paused(self) -> PauseMode | None:
        """The mode of the pause that was asked for."""
        return self.requests.paused

    @property
    def is_at_rest(self) -> bool:
        """Whether a pause is complete: nothing is computed, nobody is owed an end, and what was given up is free."""
        if self.paused is None or not self.planner.is_idle or self._releases:
            return False
        drained = self.paused != "wait" or len(self.requests) == self.requests.waiting.num_held
        return drained and not (self._is_served and self.requests.news.freed)

    @property
    def _is_served(self) -> bool:
        """Whether executor and block manager are there, and of one epoch."""
        return self._epoch is not None and self._epoch == self._pool_epoch

    # One step.

    def _advance(self, *, aborted: bool = False) -> None:
        """Begins a step, if all are there who take part in it."""
        if self._releases and self.planner.is_idle:
            self._releases = False
            self.requests.release_running()
        if self._is_served and self.outputs.stream.open:
            assert self._epoch is not None, "it is served"
            cut = self.planner.cut_short(self._epoch, aborted=aborted)
            if cut is not None:
                self._outbox.append((EXECUTORS, cut))
            assign = self.planner.begin(self._epoch, self._manager)
            if assign is not None:
                self._outbox.append((BLOCKS, assign))

    def assigned(self, message: Assigned, now: float = 0.0) -> None:
        """What the block manager granted is computed."""
        self.requests.now = now
        exchange = self.planner.exchange
        if exchange is None or message.step != exchange.step:
            return  # of a step that was given up meanwhile
        if message.epoch != self._epoch:
            # No judgement about our pool. What happened to it is on its way, and begins the next step.
            self.planner.give_up_exchange()
            return
        plan = self.planner.granted(message)
        if plan is not None:
            self._outbox.append((EXECUTORS, plan))
        self._advance()

    def stepped(self, message: StepResult, now: float = 0.0) -> None:
        """The tokens that a step drew."""
        self.requests.now = now
        if message.epoch != self._epoch:
            return
        step = self.planner.computed(message.number, message.num_steps, message.seconds)
        if step is None:
            return  # it was given up meanwhile
        self._results.take(step, message)
        if self.speculator is not None:
            propose = self.speculator.stepped(step.chunks, message, now)
            if propose is not None:
                self._outbox.append((DRAFTER, propose))
        self.requests.acquit()
        self._advance()

    def late_tokens(self, message: LateTokens, now: float = 0.0) -> None:
        """Tokens that a step deferred."""
        self.requests.now = now
        if message.epoch == self._epoch:
            self._results.take_late(message)
            self.planner.retry()
            self._advance()

    def acknowledged(self, up_to: int) -> None:
        """The detokenizer has taken in our batches so far."""
        self.outputs.stream.acknowledge(up_to)
        self._advance()

    def take_outbox(self) -> Outbox:
        """The messages that these events lead to, in order."""
        if self.outputs and self.outputs.stream.open:
            self._outbox.append((DETOKENIZER, self.outputs.take()))
        outbox, self._outbox = self._outbox, []
        return outbox

    # Drafts.

    def proposed(self, message: Proposed, now: float = 0.0) -> None:
        """Drafts have come."""
        if self.speculator is not None:
            self._take_drafts(self.speculator.proposed(message, now))

    def drafts_late(self, now: float) -> None:
        """Who has waited too long for drafts goes on without."""
        if self.speculator is not None:
            self._take_drafts(dict.fromkeys(self.speculator.late(now), NOTHING))

    def drafter_gone(self) -> None:
        """Nobody proposes anything any more."""
        if self.speculator is not None:
            self._take_drafts(dict.fromkeys(self.speculator.drafter_down(), NOTHING))

    def _take_drafts(self, drafts: dict[int, Guess]) -> None:
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
        """An executor of a new epoch: its memory and its batch are empty."""
        if event.epoch <= max(self._epoch or 0, self._epochs_gone):
            return
        if self._epoch is not None:
            self.executor_gone(self._epoch)
        self._epoch = event.epoch
        self.requests.weight_version = event.weight_version
        self.planner.reset(min(event.max_num_seqs, self.limits.max_num_seqs), event)
        pool_tokens = event.num_blocks // len(event.windows) * event.block_size
        self.requests.limit(min(self.limits.max_model_len, event.max_model_len, pool_tokens))
        self._advance()

    def executor_gone(self, epoch: int, *, died: bool = True) -> bool:
        """Take back the requests that an executor had: whatever was in its memory is lost.

        Args:
            died: rather than was swapped; then one of the requests may be why.

        Returns:
            Whether requests are charged with its death.
        """
        self._epochs_gone = max(self._epochs_gone, epoch)
        if self._epoch is None or epoch < self._epoch:
            return False  # late news: its successor is here already
        self._epoch = None
        computing: dict[int, int] = {}  # by serial: up to where; a later step goes further
        for step in self.planner.computing:
            computing.update(zip(step.chunks.serials.tolist(), step.chunks.ends.tolist(), strict=True))
        for request in self.requests.running:
            if died and request.serial in computing:
                count_death(request, computing[request.serial])
        tried = self.requests.waiting.quarantine.on_trial
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
        """The block manager of that incarnation has a pool for that epoch."""
        if manager < self._manager:
            return  # late news: its successor is here already
        if manager > self._manager and self._pool_epoch is not None:
            self.pool_gone(self._manager)
        self._manager, self._pool_epoch = manager, epoch
        self._advance()

    def pool_gone(self, manager: int) -> None:
        """Nobody knows any more which block is whose; the requests that hold any wait for the next manager."""
        if manager < self._manager:
            return
        self._pool_epoch = None
        self.planner.lose_memory()

    def detokenizer_gone(self) -> None:
        """The next one is told of every open request. Those whose end the former may have kept to itself are
        submitted again, by frontends that have not heard of it."""
        self.outputs.reopen(self.requests)
        self.counters.reopened += len(self.requests)
        self._advance()

    # Looking in.

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self.requests)

    @property
    def num_waiting(self) -> int:
        """Requests that hold no memory."""
        exchange, waiting = self.planner.exchange, self.requests.waiting
        return len(waiting) + waiting.num_held + (len(exchange.admitting) if exchange else 0)

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        return len(self.requests.running)

    def count(self) -> dict[str, int]:
        """What happened so far."""
        return vars(self.counters) | ({} if self.speculator is None else self.speculator.count())

    def check_integrity(self) -> None:
        """Asserts what must always hold."""
        self.requests.check_integrity(self.planner.at_hand())
