"""Counters of a scheduler, for metrics and for tests that ask whether something happened."""

from __future__ import annotations

from dataclasses import dataclass

from pageant.actors.scheduler.request import ScheduledRequest, State


@dataclass
class SchedulerCounters:
    """Counts since the start."""

    steps: int = 0
    submitted: int = 0
    ended: int = 0
    overloads: int = 0
    deadlines_missed: int = 0
    steps_ahead: int = 0
    """Steps planned while another was computed."""
    steps_together: int = 0
    """Steps of multi-step plans."""
    plans_cut: int = 0
    """Multi-step plans that were cut short because a request came."""
    rows_wasted: int = 0
    """Rows computed for requests that had ended."""
    chunk_splits: int = 0
    preemptions: int = 0
    suspects_tried: int = 0
    """Requests that ran alone because executors had died with them."""
    resumed: int = 0
    """Requests taken over from a scheduler that died."""
    recomputed: int = 0
    """Requests that went back to the queue because their memory was lost."""
    reopened: int = 0
    """Requests that were opened again at a new detokenizer."""
    moved: int = 0
    """Requests that went on at another replica."""
    handed_over: int = 0
    """Requests that went on at another replica with their first token, as they were meant to."""
    aborts_waiting: int = 0
    aborts_asked: int = 0
    aborts_running_prefill: int = 0
    aborts_running_decode: int = 0
    aborts_preempted: int = 0
    stops_by_string: int = 0
    tokens_cached: int = 0
    tokens_restored: int = 0
    """Cached tokens that came from a tier below the device."""
    swaps: int = 0
    """Preempted requests that resumed with restored blocks."""
    growth_refused: int = 0
    admissions_refused: int = 0
    rows_deferred: int = 0
    """Rows whose masks were late."""
    rows_void: int = 0
    """Rows computed in vain after a deferred one."""

    def count_restored(self, request: ScheduledRequest, num_tokens: int) -> None:
        """Count a request that was admitted with `num_tokens` tokens from below the device."""
        self.tokens_restored += num_tokens
        self.swaps += bool(num_tokens and request.num_preemptions)

    def count_abort(self, request: ScheduledRequest, *, prefilling: bool) -> None:
        """Count an open request that is about to be aborted."""
        if request.state is State.ASKED:
            self.aborts_asked += 1
        elif request.state is State.RUNNING:
            if prefilling:
                self.aborts_running_prefill += 1
            else:
                self.aborts_running_decode += 1
        elif request.num_preemptions:
            self.aborts_preempted += 1
        else:
            self.aborts_waiting += 1
