"""Timeline of each request: the same account of a recording and of its replay."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field

from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Finished, OutputBatch, Submit


@dataclass(eq=False)
class Course:
    """One request (one sample of it). Times are in seconds of one clock; positions are of its output's tokens."""

    submitted_at: float
    num_prompt_tokens: int
    params: SamplingParams
    first_at: float | None = None
    last_at: float | None = None
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    finished: Finished | None = None
    left_at: float | None = None  # its user's, before its end

    @property
    def ended(self) -> bool:
        """Tell whether nothing more comes of it."""
        return self.finished is not None or self.left_at is not None

    @property
    def end(self) -> str:
        """Return its end: served, left by its user, cut off with the recording, or the cause of an error or abort."""
        if self.left_at is not None:
            return "left"
        if self.finished is None:
            return "cut off"
        return "served" if self.finished.reason in ("stop", "length") else self.finished.cause or "abort"

    @property
    def stopped(self) -> bool:
        """Tell whether its answer ended by itself."""
        return self.end == "served" and self.finished is not None and self.finished.reason == "stop"

    @property
    def served(self) -> bool:
        """Tell whether it came to the end that it was to have."""
        return self.end == "served"


@dataclass(frozen=True, eq=False)
class _Piece:
    """Tokens of one request that reached its frontend at `at` seconds; `start` is the first one's position."""

    start: int
    token_ids: list[int]
    finished: Finished | None
    at: float


class Timeline:
    """Every request of a run, in the order of submission, by whatever names it.

    A recording orders the messages of one process, and not those of two: the output of a short request may stand
    before the request itself.
    """

    def __init__(self) -> None:
        self.courses: dict[Hashable, Course] = {}
        # Output whose request is not known, perhaps not yet. Its keys are never in `courses`.
        self._early: dict[tuple[str, str], list[_Piece]] = {}

    @property
    def begun_before(self) -> int:
        """Return how many requests are known by their output only."""
        return len(self._early)

    def submitted(self, key: tuple[str, str], submit: Submit, at: float) -> None:
        """Note that a request reached the scheduler at `at` seconds."""
        course = self.courses[key] = Course(at, len(submit.prompt_token_ids), submit.params)
        for piece in self._early.pop(key, ()):
            _take(course, piece)

    def left(self, key: Hashable, at: float) -> None:
        """Note that its user left at `at` seconds, before its end."""
        course = self.courses.get(key)
        if course is not None and not course.ended:
            course.left_at = at

    def output(self, frontend: str, batch: OutputBatch, at: float) -> list[tuple[str, str]]:
        """Take a step's output, which reached a frontend at `at` seconds. Return the (frontend, id) of what is new."""
        position, news = 0, []
        columns = zip(batch.request_ids, batch.token_starts.tolist(), batch.counts.tolist(), strict=True)
        for index, (request_id, start, count) in enumerate(columns):
            tokens = batch.token_ids[position : position + count].tolist()
            position += count
            key = (frontend, request_id)
            piece = _Piece(start, tokens, batch.finished.get(index), at)
            course = self.courses.get(key)
            if course is None:
                self._early.setdefault(key, []).append(piece)
            elif _take(course, piece):
                news.append(key)
        return news


def _take(course: Course, piece: _Piece) -> bool:
    """Add what a piece has that its request has not. Return False if the request had ended."""
    if course.ended:
        return False
    fresh = piece.token_ids[max(0, len(course.token_ids) - piece.start) :]  # a piece may come twice
    if fresh:
        course.token_ids.extend(fresh)
        course.first_at = piece.at if course.first_at is None else course.first_at
        course.last_at = piece.at
    course.finished = piece.finished
    if course.finished is not None:
        course.last_at = piece.at
    return True
