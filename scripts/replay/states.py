"""States of a recording in any order, for a slider over its steps."""

from __future__ import annotations

from pathlib import Path

from pageant.actors.runtime.address import replica_of
from pageant.actors.runtime.recording import RecordingReader
from pageant.protocol.errors import BadRequest
from pageant.protocol.recording import RecordedMessage
from pageant.protocol.stepping import StepPlan
from pageant.scripts.replay.load import Load
from pageant.scripts.replay.steps import Board, Decision
from pageant.scripts.replay.travel import StepState, state_of

KEPT_EVERY = 256
"""Steps between two boards that are kept: a state is at most so many plans behind one."""


class RecordedStates:
    """Gives the state at any step of a recording, the same as `state_at`. Holds the recording's plans in memory.

    Raises:
        UnreadableRecording: the file cannot be read.
    """

    def __init__(self, path: Path, load: Load) -> None:
        self._path = path
        with RecordingReader(path) as reader:
            self._reader = reader
            """Decodes the plans; its file is closed."""
            self._plans: list[RecordedMessage] = [
                one
                for one in reader.messages()
                if one.kind == "StepPlan" and replica_of(one.to) == load.replica
            ]
            """All plans of the scheduler, in order."""
        self._boards: dict[int, Board] = {0: Board(load)}
        """Boards after some steps, by the step's number; never changed."""

    def __len__(self) -> int:
        return len(self._plans)

    def at(self, step: int) -> StepState:
        """Return the state at a step, counted from 1.

        Raises:
            BadRequest: the recording has fewer steps.
        """
        if not 1 <= step <= len(self):
            raise BadRequest(
                f"{self._path.name} has {len(self)} steps; expected one between 1 and {len(self)}, not {step}",
                "step",
            )
        known = max(number for number in self._boards if number < step)
        board = self._boards[known].copy()
        for number in range(known + 1, step + 1):
            decision = self._take(board, number)
            if number % KEPT_EVERY == 0 and number not in self._boards:
                self._boards[number] = board.copy()
        return state_of(decision, board)

    def _take(self, board: Board, number: int) -> Decision:
        message = self._plans[number - 1]
        plan = self._reader.decode(message)
        assert isinstance(plan, StepPlan)
        return board.take(plan, message.at, message.sender_incarnation)
