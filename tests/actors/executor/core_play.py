"""A play of one executor's core: a scheduler, a grammar and threads that take their turns in any order."""

from __future__ import annotations

import random
from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import numpy as np

from pageant.actors.executor.adapters import AdapterBook
from pageant.actors.executor.batch.batch import Batch
from pageant.actors.executor.computing import ComputingThread
from pageant.actors.executor.core import ExecutorCore
from pageant.actors.executor.instructions import (
    Fail,
    Fetch,
    Launch,
    MakeMove,
    Sample,
    SampleLate,
    Send,
    Wake,
)
from pageant.protocol.arrays import freeze, int64
from pageant.protocol.guiding import GuideStep, TokenMasks
from pageant.protocol.stepping import CutShort, LateTokens, StepResult
from tests.actors.executor.core_model import (
    BLOCK_SIZE,
    LENGTH_MAX,
    ROWS,
    Runner,
    allowed_at,
)
from tests.actors.executor.core_scheduler import EPOCH, PlayScheduler

PATIENCE = 30.0


class Play:
    """One executor's core, with a scheduler, a grammar and threads. A thread's work is a list of calls."""

    def __init__(self, seed: int, *, threads: int = 1) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.threads = threads
        self.seen: Counter[str] = Counter()
        self.scheduler = PlayScheduler(self.random, self.seen)
        self.batch = Batch(ROWS, LENGTH_MAX, BLOCK_SIZE)
        self.core = ExecutorCore(
            self.batch, AdapterBook(self.batch, ()), step_patience=10.0, mask_patience=PATIENCE
        )
        self.core.start(EPOCH, 1, launches_ahead=threads == 1)
        self.runner = Runner(lambda: self.is_ready(), self._note_move)
        clock = SimpleNamespace(now=lambda: self.now)
        self.thread = ComputingThread(self.runner, self.core.cut, clock, soon_seconds=0.0)  # type: ignore[arg-type]
        self.lane: deque[Any] = deque()
        self.moves: deque[Any] = deque()
        self.fetches: deque[Any] = deque()
        self.wakes: list[float] = []
        self.masks: deque[tuple[int, int]] = deque()  # guides and positions whose masks are not sent
        self.grammar = True
        self.moved: set[int] = set()  # blocks that were saved
        self.core.grammar_up(self.now)
        self.perform()

    def perform(self) -> None:
        """Queue the core's instructions by the thread that carries them out; deliver its messages."""
        for order in self.core.take_instructions():
            match order:
                case Launch(step, work):
                    frozen = _content(work)
                    self.lane.append(
                        lambda step=step, work=work, frozen=frozen: self._launch(step, work, frozen)
                    )
                case Sample(step, pending, recalled):
                    self.seen["awaited"] += 1
                    self.lane.append(
                        lambda step=step, pending=pending, recalled=recalled: self.core.sampled(
                            step, self.thread.draw_awaiting(pending, recalled), self.now
                        )
                    )
                case SampleLate(kept):
                    self.lane.append(lambda kept=kept: self._draw_late(kept))
                case Fetch(step, drawn):
                    assert not self.fetches, "one waits for tokens at a time"
                    self.fetches.append(
                        lambda step=step, drawn=drawn: self.core.fetched(step, drawn.token_ids(), self.now)
                    )
                case MakeMove(move):
                    assert not self.moves, "moves are made one at a time"
                    self.moves.append(lambda move=move: self._make_move(move))
                case Wake(at):
                    self.wakes.append(at)
                case Send(address, message):
                    freeze(message)
                    self._receive(address, message)
                case Fail(error):
                    raise error
        self.core.check_integrity()

    def _launch(self, step: Any, work: Any, frozen: Any) -> None:
        outcome = self.thread.launch(work)
        if outcome is not None:
            assert _content(work) == frozen, "what was handed over has changed"
            self._check_moves(step)
        self.seen["refused" if outcome is None else "launched"] += 1
        self.seen["void"] += bool(outcome is not None and step.void)
        self.core.launched(step, outcome, self.now)

    def _draw_late(self, kept: Any) -> None:
        drawn = self.runner.draw(kept.pending)
        self.core.late_sampled(kept, drawn, drawn.token_ids())

    def _make_move(self, move: Any) -> None:
        self.runner.host.move(move)
        self.core.moved(0.01)

    def _note_move(self, move: Any) -> None:
        self.moved |= set(move.sources.tolist())

    def _check_moves(self, step: Any) -> None:
        """Check that a step's urgent saves are made before it is computed, and all saves of earlier plans."""
        blocks, urgent = self.scheduler.to_save.get((step.incarnation, step.plan.number), ([], 0))
        assert self.moved.issuperset(blocks[:urgent]), "a block is overwritten that is not saved"
        for (incarnation, number), (earlier, _) in self.scheduler.to_save.items():
            if incarnation == step.incarnation and number < step.plan.number:
                assert self.moved.issuperset(earlier), "a step overtakes moves"

    def is_ready(self) -> bool:
        """Tell whether tokens are on the host as soon as they are drawn: always on a CPU, seldom on a GPU."""
        return self.threads == 1 or self.random.random() < 0.2

    def turn(self, lane: deque[Any]) -> None:
        """Let a thread make its next call."""
        if lane:
            lane.popleft()()
            self.perform()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        due, self.wakes = (
            [at for at in self.wakes if at <= self.now],
            [at for at in self.wakes if at > self.now],
        )
        for _ in due:
            self.core.tick(self.now)
            self.perform()

    def say_masks(self, count: int = 1) -> None:
        """Deliver the oldest masks that the grammar has not sent."""
        if not self.grammar:
            return
        some = [self.masks.popleft() for _ in range(min(count, len(self.masks)))]
        if some:
            guides, positions = map(int64, zip(*some, strict=True))
            bits = np.array([[allowed_at(position)] for position in positions.tolist()], np.uint32).view(
                np.int32
            )
            self.core.masks(
                TokenMasks(epoch=EPOCH, guides=guides, positions=positions, ahead=0 * guides, bits=bits),
                self.now,
            )
            self.perform()

    def kill_grammar(self) -> None:
        if self.grammar:
            self.grammar = False
            self.masks.clear()
            self.core.grammar_down("killed", final=False, now=self.now)
            self.perform()

    def revive_grammar(self) -> None:
        if not self.grammar:
            self.grammar = True
            self.core.grammar_up(self.now)
            self.perform()

    def _follow(self, news: GuideStep) -> None:
        if self.grammar:
            for opened in news.opened:
                self.masks.append((opened.guide, opened.position))
            self.masks.extend(zip(news.guides.tolist(), (news.positions + 1).tolist(), strict=True))

    def plan(self, num_steps: int = 1, *, cut: bool = False, num_saves: int = 0) -> None:
        """Give the core the next plan of all rows that can go on, and cut it short at once if `cut`."""
        plan = self.scheduler.plan(num_steps, num_saves)
        if plan is None:
            return
        self.core.plan(plan, "scheduler", self.scheduler.incarnation, self.now)
        if cut:
            self.cut()
        self.perform()

    def cut(self) -> None:
        """Cut the plans so far short: only the steps at hand are wanted."""
        self.core.cut_short(CutShort(number=self.scheduler.number, epoch=EPOCH), self.scheduler.incarnation)

    def _receive(self, address: str, message: Any) -> None:
        if isinstance(message, GuideStep):
            self._follow(message)
        elif self.core.scheduler != self.scheduler.incarnation:
            return  # the executor still answers the scheduler's former life
        elif isinstance(message, StepResult):
            self.scheduler.take(message, may_fail=not self.grammar)
        elif isinstance(message, LateTokens):
            self.scheduler.take_late(message)
        else:
            assert address == "blocks"

    def drain(self) -> None:
        """Let the threads and the grammar finish. Check that every plan is answered."""
        self.revive_grammar()
        for _ in range(400):
            for lane in (self.lane, self.moves, self.fetches):
                self.turn(lane)
            self.say_masks(9)
            self.wait(0.02)
            waits = any(one.waits for one in self.scheduler.rows.values())
            if not (self.core.steps or self.lane or self.moves or self.fetches or waits):
                break
        assert not self.scheduler.plans, "plans were not answered"
        assert not any(one.waits for one in self.scheduler.rows.values()), "deferred tokens never came"


def _content(work: Any) -> Any:
    """Return the inputs of a launch as bytes, without the mask table, which alone may change meanwhile."""
    return [_bytes(one) for one in (*work[:4], *work.steps, work.ends)]


def _bytes(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, list | tuple):
        return [_bytes(one) for one in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _bytes(one) for name, one in vars(value).items() if name != "table"}
    return repr(value)
