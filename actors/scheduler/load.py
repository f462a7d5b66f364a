"""The work of a scheduler, for the router. A core: no I/O, no clock."""

from __future__ import annotations

from pageant.actors.runtime.step_time import StepTime
from pageant.actors.scheduler.core import SchedulerCore
from pageant.actors.scheduler.request import State
from pageant.protocol.allocation import Assigned
from pageant.protocol.arrays import int64
from pageant.protocol.routing import Load
from pageant.protocol.stepping import ExecutorReady

STEP_KEPT = 0.98
"""Share of its weight that a step keeps with each later one."""
VARIANCE_MIN = 4.0
"""Least variance of steps' tokens that tells the time of a token from that of a step."""
STEP_TOKENS = 64
"""Tokens that a step is as long as, by the assumption that holds where all steps are alike."""

MEMORY_CHANGE = 0.01
"""The least change of the memory that requests need, in shares of all, that is told without another."""


class LoadMeter:
    """Sums up what a scheduler has to do, and which tickets it has seen.

    Args:
        core: the scheduler's core.
    """

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._time = StepTime(STEP_KEPT)
        self._seen: list[int] = []
        # The load that was sent last; None before the first to each router.
        self._last: Load | None = None
        # Tokens that the executor's KV memory holds; 0 while there is none.
        self._memory_tokens = 0
        # Share of it that requests held at the latest exchange with the block manager.
        self._held_memory = 0.0

    def submitted(self, ticket: int) -> None:
        """Note that a request has come with this ticket."""
        self._seen.append(ticket)

    def stepped(self, num_tokens: int, seconds: float) -> None:
        """Note a step of `num_tokens` tokens that took `seconds`."""
        if seconds > 0 and num_tokens:
            self._time.add(num_tokens, seconds)

    def executor_ready(self, event: ExecutorReady) -> None:
        """Note an executor's memory, of which nothing is held."""
        self._memory_tokens = event.num_blocks // len(event.windows) * event.block_size
        self._held_memory = 0.0

    def assigned(self, message: Assigned) -> None:
        """Note how much of the memory is held."""
        if message.num_blocks:
            self._held_memory = 1 - message.blocks_free / message.num_blocks

    def start_over(self) -> None:
        """Tell everything to a new router, which has issued none of the tickets."""
        self._last = None
        self._seen.clear()

    def take(self) -> Load | None:
        """Return the load to send now; None where it is what was sent last."""
        core = self._core
        load = Load(
            seen=int64(self._seen),
            waiting_tokens=self._waiting_tokens(),
            running=core.num_running,
            waiting=core.num_waiting,
            seconds_per_token=self.seconds_per_token,
            output_tokens=core.requests.mean_output,
            memory=self._needed_memory(),
            memory_tokens=self._memory_tokens,
        )
        last, self._seen = self._last, []
        is_same = (
            last is not None
            and not len(load.seen)
            and (
                (last.waiting_tokens, last.running, last.waiting)
                == (load.waiting_tokens, load.running, load.waiting)
            )
            and abs(last.memory - load.memory) < MEMORY_CHANGE
        )
        if is_same:
            # What is compared stays what was sent: changes too small to tell add up.
            return None
        self._last = load
        return load

    def _waiting_tokens(self) -> int:
        """Return the tokens that are to be computed, as far as the router does not expect them to be cached."""
        waiting = sum(one.num_expected for one in self._core.requests if one.state is not State.RUNNING)
        return waiting + self._core.requests.running.num_uncomputed()

    def _needed_memory(self) -> float:
        """Return the share of the memory that requests hold, or will once they are admitted."""
        waiting = self._core.requests.waiting.num_tokens
        return self._held_memory + waiting / max(1, self._memory_tokens)

    @property
    def seconds_per_token(self) -> float:
        """Return the seconds that one more token takes; 0 before any step."""
        time = self._time
        if not time.is_known:
            return 0.0
        each = time.each(VARIANCE_MIN)
        # Steps that are all alike say nothing of how their time depends on their tokens.
        share = time.mean_seconds / (time.mean_tokens + STEP_TOKENS)
        return share if each is None or each <= 0 else each
