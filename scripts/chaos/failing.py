"""Executors that fail once when a file says so, as leaders and followers of a group do."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from pageant.actors.executor.actor import Executor
from pageant.actors.executor.groups.rank import Rank
from pageant.actors.executor.work import Launched, Work
from pageant.protocol.ranks import Order

__all__ = ["FAILING", "FAULTS", "FailingExecutor", "FailingRank", "have_fail"]

FAULTS = ("kill", "stop", "raise", "loop")
"""Ways to fail: the process is killed, or stopped; the computing thread raises, or never returns."""


def have_fail(folder: Path, rank: int, fault: str) -> None:
    """Have a member fail at its next step.

    Args:
        folder: the option `faults`.
        rank: the member's.
        fault: one of `FAULTS`.
    """
    (folder / f"{rank}.new").write_text(fault)
    (folder / f"{rank}.new").rename(folder / str(rank))


def _fail_as_asked(folder: str, rank: int) -> None:
    """Fail as the rank's file says, and remove it first: the next life does not fail. For the computing thread."""
    file = Path(folder, str(rank))
    try:
        fault = file.read_text()
    except FileNotFoundError:
        return
    file.unlink()
    if fault in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        return
    while fault == "loop":
        pass
    raise RuntimeError(f"rank {rank} was to fail")


class FailingRank(Rank):
    """A follower that fails before it computes an order."""

    class Options(Rank.Options, frozen=True, kw_only=True):
        """Options of a follower that may fail: those of `FailingExecutor`."""

        faults: str = ""

    async def _follow(self, order: Order) -> None:
        await self.offload(_fail_as_asked, self.options.faults, self.rank)
        await super()._follow(order)


class FailingExecutor(Executor):
    """A leader that fails before it computes a launch, which the others have been ordered to compute."""

    class Options(Executor.Options, frozen=True, kw_only=True):
        """Options of a leader that may fail.

        Attributes:
            faults: a folder. A file in it, by a member's rank, says how that member fails at its next step.
        """

        faults: str = ""

    follower = f"{__name__}:FailingRank"

    def _compute(self, work: Work) -> Launched | None:
        _fail_as_asked(self.options.faults, 0)
        return super()._compute(work)


FAILING: dict[str, Any] = {"class": f"{__name__}:{FailingExecutor.__qualname__}"}
"""The topology's entry of an executor that may fail, without its options."""
