"""A play of one executor's core: a scheduler, a grammar and threads that take their turns in any order."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from pageant.actors.executor.adapters import AdapterBook
from pageant.actors.executor.batch.batch import Batch
from pageant.actors.executor.computing import ComputingThread
from pageant.actors.executor.core import ExecutorCore
from pageant.actors.executor.guided.undrawn import Undrawn
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
from pageant.protocol.arrays import bools, freeze, int32, int64
from pageant.protocol.guiding import GuideStep, TokenMasks
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import CutShort, LateTokens, NewSequence, StepPlan, StepResult
from pageant.protocol.tiers import BlockMoves
from pageant.protocol.verification import MISSING, NO_DRAFTS

ROWS, LENGTH_MAX, BLOCK_SIZE, VOCABULARY = 3, 40, 4, 32
BLOCKS = LENGTH_MAX // BLOCK_SIZE
EPOCH, AHEAD = 7, 2
PROMPTS = ((1, 2, 3), (4,), (5, 6, 7, 8, 9))
PATIENCE = 30.0


def follow(prefix: int, token: int) -> int:
    """Return the hash of a prefix with one more token."""
    return (prefix ^ (token + 1)) * 0xBF58476D1CE4E5B9 % 2**61


def chosen(prefix: int, allowed: int) -> int:
    """Return the token that comes after a prefix, of those whose bits are set."""
    token = (prefix >> 13) % VOCABULARY
    while not allowed >> token & 1:
        token = (token + 1) % VOCABULARY
    return token


ANY = 2**VOCABULARY - 1


def allowed_at(position: int) -> int:
    """Return what the grammar allows at a position."""
    return 0x55555555 if position % 2 else 0x33333333


def right_tokens(prompt: tuple[int, ...], count: int, *, guided: bool) -> list[int]:
    """Return the right output of a sequence."""
    prefix, output = 0, list[int]()
    for token in prompt:
        prefix = follow(prefix, token)
    for place in range(count):
        output.append(chosen(prefix, allowed_at(len(prompt) + place) if guided else ANY))
        prefix = follow(prefix, output[-1])
    return output


@dataclass(frozen=True, kw_only=True)
class Kept(Undrawn):
    """Prefixes of drawing rows, and which rows these are."""

    prefixes: list[int]
    rows: np.ndarray

    def part(self, places: np.ndarray) -> Kept:
        return Kept(
            places=self.places[places],
            guided=self.guided.part(places),
            prefixes=[self.prefixes[place] for place in places.tolist()],
            rows=self.rows[places],
        )


class Runner:
    """A model whose tokens are a function of the prefix, kept by row and position."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._prefixes: dict[tuple[int, int], int] = {}
        self._last_drawn = [0] * ROWS
        self.host = SimpleNamespace(move=play.note_move)

    def launch(self, inputs: Any) -> Any:
        tokens = inputs.token_ids.tolist()
        for at, row in zip(inputs.unknown.tolist(), inputs.unknown_rows.tolist(), strict=True):
            tokens[at] = self._last_drawn[row]
        rows = np.repeat(self._play.rows_of(inputs), np.diff(inputs.query_starts)).tolist()
        for row, position, token in zip(rows, inputs.positions.tolist(), tokens, strict=True):
            before = self._prefixes[row, position - 1] if position else 0
            self._prefixes[row, position] = follow(before, token)
        drawing = zip(inputs.rows.tolist(), inputs.sampling.position.tolist(), strict=True)
        prefixes = [self._prefixes[row, position - 1] for row, position in drawing]
        if inputs.guided is None:
            return self._draw(prefixes, inputs.rows, [ANY] * len(prefixes))
        places = np.arange(len(prefixes))
        kept = Kept(places=places, guided=inputs.guided, prefixes=prefixes, rows=inputs.rows)
        return kept if len(inputs.guided.late) else self.draw(kept)

    def draw(self, kept: Undrawn) -> Any:
        assert isinstance(kept, Kept)
        guided, masks = kept.guided, [ANY] * len(kept.prefixes)
        late, deferred = guided.late, guided.deferred
        for place, bits in zip(*guided.present(), strict=True):
            masks[place] = int(bits.view(np.uint32)[0])
        drawn = self._draw(kept.prefixes, kept.rows, masks)
        drawn.missing, drawn.failed = late, guided.failures()
        drawn.late = kept.part(deferred) if len(deferred) else None
        return drawn

    def _draw(self, prefixes: list[int], rows: np.ndarray, masks: list[int]) -> Any:
        tokens = list(map(chosen, prefixes, masks))
        for row, token in zip(rows.tolist(), tokens, strict=True):
            self._last_drawn[row] = token
        return SimpleNamespace(
            ready=self._play.is_ready(),
            token_ids=lambda: np.array(tokens, np.int64),
            logprobs=lambda: (None, None),
            pooled=lambda: None,
            failed={},
            missing=int64(),
            late=None,
            proposed=NO_DRAFTS,
            drafting_seconds=0.0,
        )


@dataclass(eq=False)
class Sequence:
    """A row as the scheduler knows it."""

    row: int
    prompt: tuple[int, ...]
    guided: bool
    params: SamplingParams
    output: list[int] = field(default_factory=list)
    planned: int = 0
    """How many of its output tokens are drawn by the plans so far."""
    in_flight: int = 0
    """How many plans have it that are not answered."""
    waits: bool = False
    """Whether a token was deferred, and has not come."""
    is_new: bool = True


class Play:
    """One executor's core with all around it. Whatever waits for its turn is a list of calls."""

    def __init__(self, seed: int, *, threads: int = 1) -> None:
        self.random = random.Random(seed)
        self.now, self.incarnation, self._number = 0.0, 1, 0
        self.threads = threads
        self.seen: Counter[str] = Counter()
        self.failures: list[str] = []
        self.batch = Batch(ROWS, LENGTH_MAX, BLOCK_SIZE)
        self.core = ExecutorCore(
            self.batch, AdapterBook(self.batch, ()), step_patience=10.0, mask_patience=PATIENCE
        )
        self.core.start(EPOCH, 1, launches_ahead=threads == 1)
        self.runner = Runner(self)
        clock = SimpleNamespace(now=lambda: self.now)
        self.thread = ComputingThread(self.runner, self.core.cut, clock, soon_seconds=0.0)  # type: ignore[arg-type]
        self.lane: deque[Any] = deque()
        self.moves: deque[Any] = deque()
        self.fetches: deque[Any] = deque()
        self.wakes: list[float] = []
        self.masks: deque[tuple[int, int]] = deque()  # guides and positions that the grammar knows masks of
        self.grammar = True
        self.rows: dict[int, Sequence] = {}
        self.freed: list[int] = []
        self.plans: dict[int, tuple[StepPlan, list[Sequence]]] = {}  # of this scheduler, not answered
        self.moved: set[int] = set()  # blocks that were saved
        self._blocks, self._to_save = 0, dict[tuple[int, int], tuple[list[int], int]]()
        self.core.grammar_up(self.now)
        self.perform()

    # Threads.

    def perform(self) -> None:
        """Sort the core's instructions."""
        for order in self.core.take_instructions():
            match order:
                case Launch(step, work):
                    frozen = _content(work)
                    self.lane.append(
                        lambda step=step, work=work, frozen=frozen: self._launch(step, work, frozen)
                    )
                case Sample(step, undrawn, recalled):
                    self.seen["awaited"] += 1
                    self.lane.append(
                        lambda step=step, undrawn=undrawn, recalled=recalled: self.core.sampled(
                            step, self.thread.draw_awaiting(undrawn, recalled), self.now
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
        drawn = self.runner.draw(kept.undrawn)
        self.core.late_sampled(kept, drawn, drawn.token_ids())

    def _make_move(self, move: Any) -> None:
        self.runner.host.move(move)
        self.core.moved(0.01)

    def note_move(self, move: Any) -> None:
        self.moved |= set(move.sources.tolist())

    def _check_moves(self, step: Any) -> None:
        """A step is computed when its urgent saves are made, and all moves of the plans before."""
        blocks, urgent = self._to_save.get((step.incarnation, step.plan.number), ([], 0))
        assert self.moved.issuperset(blocks[:urgent]), "a block is overwritten that is not saved"
        for (incarnation, number), (earlier, _) in self._to_save.items():
            if incarnation == step.incarnation and number < step.plan.number:
                assert self.moved.issuperset(earlier), "a step overtakes moves"

    def rows_of(self, inputs: Any) -> np.ndarray:
        """Return the rows of a step's sequences, which lie in blocks of their own."""
        return inputs.block_tables[0, :, 0] // BLOCKS

    def is_ready(self) -> bool:
        return self.threads == 1 or self.random.random() < 0.2

    def turn(self, lane: deque[Any]) -> None:
        """Let a thread do the next thing that it was given."""
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

    # The grammar.

    def say_masks(self, count: int = 1) -> None:
        """Deliver the oldest masks that the grammar knows."""
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

    # The scheduler.

    def add(self, row: int, *, guided: bool, penalised: bool) -> None:
        """Begin a sequence in a row that is free."""
        if row not in self.rows:
            params = SamplingParams(
                temperature=0.0,
                structured_outputs={"regex": "a+"} if guided else None,
                presence_penalty=0.5 if penalised else 0.0,
            )
            self.rows[row] = Sequence(row, self.random.choice(PROMPTS), guided, params)

    def end(self, row: int) -> None:
        """End a sequence, wherever it is."""
        if row in self.rows and not self.rows[row].is_new:
            self.freed.append(row)
        self.rows.pop(row, None)

    def plan(self, num_steps: int = 1, *, cut: bool = False, num_saves: int = 0) -> None:
        """Plan the next step of all rows that can go on."""
        several = [plan for plan, _ in self.plans.values() if plan.num_steps > 1]
        going = [one for one in self.rows.values() if self._can_go_on(one, num_steps if not several else 9)]
        if not going or len(self.plans) >= AHEAD:
            return
        continues = bool(several)
        if continues and (any(one.is_new for one in going) or {id(one) for one in going} != self._of_last()):
            return  # until those plans are over
        if num_steps > 1 and not continues and any(one.in_flight or one.is_new for one in going):
            num_steps = 1
        if any(one.guided or one.params.presence_penalty for one in going):
            num_steps = 1
        self._number += 1
        plan = self._build(going, num_steps if not continues else max(2, num_steps), continues, num_saves)
        self.plans[self._number] = plan, going
        for one in going:
            one.is_new = False
            one.planned += plan.num_steps
            one.in_flight += 1
        self.freed = []
        freeze(plan)
        self.core.plan(plan, "scheduler", self.incarnation, self.now)
        self.seen["several"] += plan.num_steps > 1
        if cut:
            self.cut()
        self.perform()

    def cut(self) -> None:
        """Want nothing of the plans so far but the steps at hand."""
        self.core.cut_short(CutShort(number=self._number, epoch=EPOCH), self.incarnation)

    def _of_last(self) -> set[int]:
        return {id(one) for one in self.plans[self._number][1]} if self._number in self.plans else set()

    def _can_go_on(self, one: Sequence, num_steps: int) -> bool:
        room = len(one.prompt) + one.planned + num_steps < LENGTH_MAX
        if one.waits or (one.planned > len(one.output) and not one.in_flight):
            return False
        return room and (one.row not in self.freed or one.is_new)

    def _build(self, going: list[Sequence], num_steps: int, continues: bool, num_saves: int) -> StepPlan:
        new, starts, counts = [], [], []
        for one in going:
            known = (*one.prompt, *one.output)
            if one.is_new:
                starts.append(0)
                counts.append(len(known))
                new.append(
                    NewSequence(
                        row=one.row,
                        token_ids=int32(known),
                        num_prompt_tokens=len(one.prompt),
                        blocks=int32(range(BLOCKS * one.row, BLOCKS * (one.row + 1))),
                        params=one.params,
                    )
                )
            else:
                starts.append(len(one.prompt) + one.planned - 1)
                counts.append(1)
        return StepPlan(
            number=self._number,
            epoch=EPOCH,
            freed_rows=int32(self.freed),
            new=tuple(new),
            grown_rows=int32(),
            grown_counts=int32(),
            grown_blocks=int32(),
            rows=int32([one.row for one in going]),
            starts=int32(starts),
            num_tokens=int32(counts),
            draws=bools([True] * len(going)),
            moves=self._saves(num_saves),
            num_steps=num_steps,
            continues=continues,
        )

    def _saves(self, count: int) -> BlockMoves | None:
        if not count:
            return None
        blocks = [self._blocks + place for place in range(count)]
        self._blocks += count
        self._to_save[self.incarnation, self._number] = blocks, count // 2
        return BlockMoves(
            save_blocks=int32(blocks),
            save_slots=int32(blocks),
            num_urgent=count // 2,
            restore_slots=int32(),
            restore_blocks=int32(),
            num_needed=0,
            spill_slots=int32(),
            spill_to=int32(),
        )

    def new_scheduler(self) -> None:
        """Begin another life of the scheduler, which knows the tokens that were told and plans all rows anew."""
        self.incarnation += 1
        self._number, self.plans, self.freed = 0, {}, []
        self.rows = {
            row: replace(one, planned=len(one.output), in_flight=0, waits=False, is_new=True)
            for row, one in self.rows.items()
        }
        self.seen["schedulers"] += 1

    def _receive(self, address: str, message: Any) -> None:
        if isinstance(message, GuideStep):
            self._follow(message)
        elif self.core.scheduler != self.incarnation:
            return  # the executor has not heard of the new scheduler, and tells the one that is dead
        elif isinstance(message, StepResult):
            self._take(message)
        elif isinstance(message, LateTokens):
            self._take_late(message)
        else:
            assert address == "blocks"

    def _take(self, result: StepResult) -> None:
        plan, going = self.plans.pop(result.number)
        assert result.number == min([result.number, *self.plans]), "answers come in order"
        self.seen["stopped short"] += result.num_steps < plan.num_steps
        tokens = result.token_ids.reshape(result.num_steps, len(going))
        assert not result.failed or not self.grammar, result.failed
        for place, one in enumerate(going):
            if self.rows.get(one.row) is not one:
                continue  # it has ended, and nobody reads what comes for it
            one.in_flight -= 1
            if place in result.deferred:
                one.waits = True
                self.seen["deferred"] += 1
            elif place in result.void:
                self.seen["void"] += 1
            else:
                one.output += tokens[:, place].tolist()
            if not one.in_flight or result.num_steps < plan.num_steps:
                one.planned = len(one.output) + one.waits
            self._check(one)
        for one in going:
            if result.num_steps < plan.num_steps:
                one.planned = len(one.output)

    def _take_late(self, message: LateTokens) -> None:
        for place, (row, token) in enumerate(
            zip(message.rows.tolist(), message.token_ids.tolist(), strict=True)
        ):
            one = self.rows.get(row)
            if place in message.failed:
                self.failures.append(message.failed[place])
                self.end(row)
            elif one is not None and one.waits:
                one.waits = False
                one.output.append(token)
                self._check(one)
                self.seen["late"] += 1
                if not one.in_flight:
                    one.planned = len(one.output)

    def _check(self, one: Sequence) -> None:
        assert MISSING not in one.output
        right = right_tokens(one.prompt, len(one.output), guided=one.guided)
        assert one.output == right, f"row {one.row} said {one.output}, {right} is right"

    # The end.

    def drain(self) -> None:
        """Let all that was given be done. Every plan is answered."""
        self.revive_grammar()
        for _ in range(400):
            for lane in (self.lane, self.moves, self.fetches):
                self.turn(lane)
            self.say_masks(9)
            self.wait(0.02)
            waits = any(one.waits for one in self.rows.values())
            if not (self.core.steps or self.lane or self.moves or self.fetches or waits):
                break
        assert not self.plans, "plans were not answered"
        assert not any(one.waits for one in self.rows.values()), "deferred tokens never came"


def _content(work: Any) -> Any:
    """All that a launch is computed from, in bytes. The mask table alone changes meanwhile."""
    return [_bytes(one) for one in (*work[:4], *work.steps, work.ends)]


def _bytes(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, list | tuple):
        return [_bytes(one) for one in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _bytes(one) for name, one in vars(value).items() if name != "table"}
    return repr(value)
