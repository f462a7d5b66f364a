"""Executors whose weights never come: they load until they are told to end, and say on stderr how far they are."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from pageant.actors.executor.actor import Executor
from pageant.actors.executor.groups.rank import Rank

RANKS = "ENDLESS_RANKS"
"""The environment's variable that names the ranks that load for ever: `0,1`."""
PAUSE_SECONDS = 0.01
"""Between two tensors."""


def _say(words: str) -> None:
    os.write(sys.stderr.fileno(), f"{words}\n".encode())


class EndlessLoad:
    """The part of a member that finds more to load after each tensor."""

    name: str

    def _report(self, done: int, total: int) -> None:
        report: Any = super()._report  # type: ignore[misc]
        if self.name.rpartition("/")[2] not in os.environ[RANKS].split(","):
            report(done, total)
            return
        _say(f"{self.name} loads")
        try:
            while True:
                report(done, total)
                threading.Event().wait(PAUSE_SECONDS)
        finally:
            _say(f"{self.name} loads no more")


class EndlessRank(EndlessLoad, Rank):
    """A follower that loads for ever."""


class EndlessExecutor(EndlessLoad, Executor):
    """An executor, alone or the leader of a group, that loads for ever."""

    follower = f"{__name__}:EndlessRank"
