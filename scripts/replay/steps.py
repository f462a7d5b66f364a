"""Steps of a recording: who computed what in each plan, who waited, and which blocks were whose.

A plan says what changed since the plan before, by rows of the executor's batch. `Board` follows the plans from the
first one on, and says which request has which row. A row's sequence is found among the submitted requests by its
prompt and its seed. Requests that are alike in both are told apart by their arrival alone.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from pageant.actors.runtime.address import replica_of
from pageant.actors.runtime.recording import RecordingReader
from pageant.protocol.serving import Submit
from pageant.protocol.stepping import NewSequence, StepPlan
from pageant.scripts.replay.load import Load
from pageant.scripts.replay.timeline import Course

_Key = tuple[bytes, int | None, int]


class ScheduledRow(NamedTuple):
    """Part of a request that a step computes: `tokens` from position `start` on, and `drafts` behind them."""

    request: int | None
    """Number of the request, by arrival from 0; None where it was submitted before the recording."""
    start: int
    tokens: int
    drafts: int


@dataclass(frozen=True)
class Decision:
    """Decisions of one plan."""

    step: int
    """Number of the plan in the recording, from 1."""
    at: float
    """Seconds, on the recording's clock."""
    rows: tuple[ScheduledRow, ...]
    num_steps: int
    admitted: tuple[int | None, ...]
    """Requests that take a row, in the plan's order."""
    ended: tuple[int | None, ...]
    """Requests that leave their row for good."""
    preempted: tuple[int | None, ...]
    """Requests that leave their row and are to come back."""

    def same(self, other: Decision) -> bool:
        """Tell whether both compute the same for the same requests, whenever, in whatever rows and blocks."""
        mine, others = ((one.rows, one.num_steps, one.admitted, one.preempted) for one in (self, other))
        return mine == others


@dataclass(eq=False)
class Running:
    """A sequence that has a row."""

    request: int | None
    blocks: list[int]
    computed: int = 0
    """Tokens that are computed once this step is, at most: drafts count as if they were right."""


@dataclass(frozen=True)
class BlockUse:
    """Blocks in the tables of running sequences. Of layers with a window, tables keep what was given back."""

    num_blocks: int | None
    held: int
    shared: int
    """Blocks in more than one table."""

    @property
    def free(self) -> int | None:
        """Return how many blocks are in no table; some of them hold a cached prefix."""
        return None if self.num_blocks is None else max(0, self.num_blocks - self.held)


@dataclass(eq=False)
class Board:
    """State of one scheduler as its plans tell it.

    Attributes:
        running: sequences by row, as of the last plan that was taken.
        ended: numbers of the requests that left their row for good.
    """

    load: Load
    running: dict[int, Running] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    _courses: list[Course] = field(default_factory=list)
    _steps: int = 0
    _life: tuple[int, int] | None = None
    _off: dict[_Key, list[int]] = field(
        default_factory=dict
    )  # requests without a row, by what they are known by

    def __post_init__(self) -> None:
        self._courses = self.load.courses
        for number, submit in enumerate(self.load.submits):
            self._off.setdefault(_key_of_request(submit), []).append(number)

    def copy(self) -> Board:
        """Return a board that goes on by itself from here."""
        running = {row: replace(one, blocks=[*one.blocks]) for row, one in self.running.items()}
        copied = replace(self, running=running, ended={*self.ended})
        copied._steps, copied._life = self._steps, self._life
        copied._off = {key: [*numbers] for key, numbers in self._off.items()}
        return copied

    def take(self, plan: StepPlan, at: float, scheduler: int) -> Decision:
        """Take the next plan.

        Args:
            at: seconds, on the recording's clock.
            scheduler: the incarnation of its sender. Each begins with an empty batch, and so does each executor.
        """
        self._steps += 1
        ended: list[int | None] = []
        preempted: list[int | None] = []
        freed = plan.freed_rows.tolist()
        if self._life != (life := (plan.epoch, scheduler)):
            freed, self._life = list(self.running), life
        for row in freed:
            gone = self.running.pop(row, None)
            if gone is not None:
                (ended if self._is_over(gone, at) else preempted).append(gone.request)
        for sequence in plan.new:
            self.running[sequence.row] = Running(self._request_of(sequence), sequence.blocks.tolist())
        place = 0
        for row, count in zip(plan.grown_rows.tolist(), plan.grown_counts.tolist(), strict=True):
            if row in self.running:
                self.running[row].blocks += plan.grown_blocks[place : place + count].tolist()
            place += count
        return Decision(
            step=self._steps,
            at=at,
            rows=tuple(self._rows(plan)),
            num_steps=plan.num_steps,
            admitted=tuple(self.running[sequence.row].request for sequence in plan.new),
            ended=tuple(ended),
            preempted=tuple(preempted),
        )

    def waiting(self, at: float) -> list[int]:
        """Return the numbers of the requests that have come by `at` (seconds, on the recording's clock), are not over
        and have no row, in the order of arrival."""
        in_rows = {one.request for one in self.running.values()}
        found = []
        for number, course in enumerate(self._courses):
            if course.submitted_at > at or number in in_rows or number in self.ended:
                continue
            left = course.left_at is not None and course.left_at <= at
            over = course.finished is not None and course.last_at is not None and course.last_at <= at
            if not left and not over:
                found.append(number)
        return found

    def block_use(self) -> BlockUse:
        """Return which blocks are in tables as of the last plan."""
        tables = Counter(block for one in self.running.values() for block in set(one.blocks))
        shared = sum(count > 1 for count in tables.values())
        return BlockUse(self.load.header.num_blocks, len(tables), shared)

    def _rows(self, plan: StepPlan) -> Iterator[ScheduledRow]:
        drafts = plan.draft_counts.tolist() or [0] * len(plan.rows)
        columns = (plan.rows.tolist(), plan.starts.tolist(), plan.num_tokens.tolist(), drafts)
        for row, start, tokens, guessed in zip(*columns, strict=True):
            one = self.running.get(row)
            if one is not None:
                one.computed = start + (tokens + guessed) * plan.num_steps
            yield ScheduledRow(None if one is None else one.request, start, tokens, guessed)

    def _is_over(self, gone: Running, at: float) -> bool:
        """Note that a sequence has left its row at `at` seconds. Return False if it is to come back."""
        if gone.request is None:
            return True
        course = self._courses[gone.request]
        left = course.left_at is not None and course.left_at <= at
        if left or gone.computed + 1 >= course.num_prompt_tokens + len(course.token_ids):
            self.ended.add(gone.request)
            return True
        insort(self._off[_key_of_request(self.load.submits[gone.request])], gone.request)
        return False

    def _request_of(self, sequence: NewSequence) -> int | None:
        alike = self._off.get(_key_of_sequence(sequence))
        return alike.pop(0) if alike else None


def _key_of_request(submit: Submit) -> _Key:
    return submit.prompt_token_ids.tobytes(), submit.params.seed, submit.sample


def _key_of_sequence(sequence: NewSequence) -> _Key:
    prompt = sequence.token_ids[: sequence.num_prompt_tokens]
    return prompt.tobytes(), sequence.params.seed, sequence.sample


def follow(path: Path, load: Load) -> Iterator[tuple[Decision, Board]]:
    """Yield the decision of each plan of a recording, with the board after it. The board is the same object each time.

    Raises:
        UnreadableRecording: it does not fit this version's protocol.
    """
    board = Board(load)
    with RecordingReader(path) as reader:
        for message in reader.messages():
            if message.kind == "StepPlan" and replica_of(message.to) == load.replica:
                plan = reader.decode(message)
                assert isinstance(plan, StepPlan)
                yield board.take(plan, message.at, message.sender_incarnation), board
