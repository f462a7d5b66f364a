"""Instructions of the executor's core to its shell: what to do off the loop, and whom to tell what."""

from __future__ import annotations

from typing import NamedTuple

from pageant.actors.executor.guided.keeping import Kept
from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.actors.executor.runners.model_runner import StepTokens
from pageant.actors.executor.steps import Step
from pageant.actors.executor.tiers.moving import Move
from pageant.actors.executor.work import Work
from pageant.protocol.message import Message

__all__ = [
    "Fail",
    "Fetch",
    "ForgetAdapter",
    "Instruction",
    "Launch",
    "MakeMove",
    "Sample",
    "SampleLate",
    "Send",
    "Trace",
    "Wake",
]


class Launch(NamedTuple):
    """Have the computing thread compute this, after what it was given before. Then `core.launched`."""

    step: Step
    work: Work


class Sample(NamedTuple):
    """Have a step drawn that awaited masks, with those that have come. Then `core.sampled`."""

    step: Step
    pending: PendingSample
    recalled: int
    """Launches up to this number are handed over again."""


class SampleLate(NamedTuple):
    """Have rows drawn that were deferred. Then `core.late_sampled`."""

    kept: Kept[Step]


class Fetch(NamedTuple):
    """Wait for tokens that are on their way from the device. Then `core.fetched`."""

    step: Step
    tokens: StepTokens


class MakeMove(NamedTuple):
    """Move blocks between tiers, beside the computing thread. Then `core.moved`."""

    move: Move


class Send(NamedTuple):
    """Tell another actor."""

    address: str
    message: Message


class Trace(NamedTuple):
    """Tell of a step in its requests' traces: it was on the device between these times."""

    step: Step
    began: float
    ended: float


class ForgetAdapter(NamedTuple):
    """Forget the weights of an adapter that no step has any more."""

    key: str


class Wake(NamedTuple):
    """Call `core.tick` at this time."""

    at: float


class Fail(NamedTuple):
    """End this life of the executor."""

    error: Exception


Instruction = Launch | Sample | SampleLate | Fetch | MakeMove | Send | Trace | ForgetAdapter | Wake | Fail
