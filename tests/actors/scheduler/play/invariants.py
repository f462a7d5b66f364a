"""Invariants of a play, checked at every message and at rest."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pageant.actors.scheduler.core import SchedulerCore
from pageant.actors.scheduler.recovery import is_suspect
from pageant.actors.scheduler.request import State
from pageant.protocol.allocation import Assigned
from pageant.protocol.outputs import Stopped
from pageant.protocol.serving import Abort
from pageant.protocol.stepping import StepPlan
from tests.actors.scheduler.play.setting import BLOCKS, DETOKENIZER, SCHEDULER
from tests.actors.scheduler.play.stage import Stage


def in_last_step(core: SchedulerCore, request: Any) -> bool:
    """Tell whether the token that is being drawn ends the request by its length."""
    pending = 0 if request.row is None else int(core.requests.running._num_pending[request.row])
    return bool(pending) and request.num_tokens + pending == request.max_total


class Invariants:
    """Checks what must hold whatever the order of messages, and counts the moments at which requests are aborted."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def before(self, target: str, message: Any) -> set[Any]:
        """Check a message that is about to be delivered; return the requests that run, for `after`."""
        if isinstance(message, StepPlan):
            self._check_plan(message)
        if target != SCHEDULER:
            return set()
        if isinstance(message, Abort):
            for name in message.request_ids:
                self._note_abort(self.stage.core.requests.named(message.frontend, name))
        return set(self.stage.core.requests.running)

    def _note_abort(self, request: Any) -> None:
        if request is None:
            return
        self.stage.seen[f"abort of {request.state.value} while {self.stage.phase}"] += 1
        self.stage.seen["abort in the last step"] += in_last_step(self.stage.core, request)

    def _check_plan(self, plan: StepPlan) -> None:
        rows = plan.rows.tolist()
        assert len(set(rows)) == len(rows), "a row is computed twice in one step"
        assert plan.num_tokens.sum() <= self.stage.setting.max_num_batched_tokens, "the budget is exceeded"
        assert rows, "a plan computes nothing"
        assert max(rows) < self.stage.setting.max_num_seqs, "there is no such row"
        assert (plan.num_tokens > 0).all(), "a row computes nothing"

    def after(self, target: str, message: Any, ran: set[Any]) -> None:
        """Check the actor that has handled a message. `ran` are the requests that ran before it."""
        if target == SCHEDULER:
            core = self.stage.core
            core.check_integrity()
            if core.is_at_rest:
                self.stage.seen[f"at rest with {core.paused}"] += 1
                self.stage.seen["held at rest"] += len(core.requests)
            assert len(core.requests.running) <= self.stage.setting.max_num_seqs, "too many requests run"
            if isinstance(message, Abort):
                for name in message.request_ids:
                    assert core.requests.named(message.frontend, name) is None, (
                        "an aborted request is still there"
                    )
            if isinstance(message, Stopped):
                assert not any(map(core.requests.find, message.serials.tolist())), "a stop was passed over"
            if isinstance(message, Assigned):
                self._check_order(set(core.requests.running) - ran)
        elif target == BLOCKS and self.stage.allocation is not None:
            self.stage.allocation.check_integrity()
            self._check_shared()

    def _check_order(self, admitted: set[Any]) -> None:
        held = self.stage.core.requests.waiting._held
        waiting = [
            request.key
            for request in self.stage.core.requests
            if request.state is State.WAITING and request.serial not in held
        ]
        in_order = (
            self.stage.setting.policy == "fcfs" and self.stage.setting.long_prefill_token_threshold is None
        )
        # A suspect runs alone: even requests that have just survived a death make room for it.
        alone = any(map(is_suspect, admitted))
        # Under another policy a request may have come meanwhile; a long prompt waits for another.
        if admitted and waiting and in_order and not alone:
            last = max(request.key for request in admitted)
            assert last < min(waiting), "a request was overtaken"

    def _check_shared(self) -> None:
        """Check that a block of two sequences is full and named, and at the same place in both."""
        holders: dict[int, list[tuple[int, bytes | None]]] = defaultdict(list)
        for sequence in self.stage.allocation._sequences.values():
            for place, block in enumerate(sequence.blocks):
                index = place // len(self.stage.setting.windows)
                name = sequence.names[index] if index < sequence.named else None
                if block >= 0:
                    holders[block].append((place, name))
        for block, places in holders.items():
            if len(places) > 1:
                assert len(set(places)) == 1 and places[0][1] is not None, f"block {block} has two owners"

    def at_rest(self) -> None:
        """Check that every request has ended and that no actor holds anything."""
        for request in self.stage.requests.values():
            assert request.ended, f"{request.submit.request_id} never ended"
        core, allocation = self.stage.core, self.stage.allocation
        requests, waiting = core.requests, core.requests.waiting
        assert not requests._by_name and not len(requests), "a request is known for ever"
        assert not (core.planner.exchange or core.planner.computing), "a step is at hand at rest"
        assert not requests.block_updates.freed, "the block manager is not told what is free"
        assert not len(waiting) and not waiting.num_tokens
        assert not any(waiting._queue._short._requests.values()), "somebody stays in the queue"
        assert not len(requests.running)
        assert sorted(requests.running.free_rows) == list(range(self.stage.setting.max_num_seqs)), (
            "rows are lost"
        )
        outputs = core.outputs
        for name in ("_sampled", "_resent", "_finished", "_facts"):
            assert not getattr(outputs, name), f"{name} of the outputs holds something at rest"
        assert not outputs.stream.unacknowledged
        assert not len(allocation), "a sequence holds blocks at rest"
        assert allocation.pool.num_free == allocation.pool.num_blocks, "blocks are lost"
        reader = self.stage.actors[DETOKENIZER]
        # What came of a former scheduler is forgotten at its successor's first word.
        former = reader.incoming.incarnation < self.stage.lives[SCHEDULER]
        assert former or not reader.open, "the detokenizer holds requests at rest"
