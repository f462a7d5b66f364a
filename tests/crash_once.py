"""Runs a test file in one process, and goes on behind a test that ended its process.

pytest-xdist's own scheduler hands the unfinished rest of a file to the next process, with the fatal test still in it.
That test ends every process, until none may be started.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

PENDING_MIN = 2
"""Tests that a process must have: it runs one only when it knows the next, or that there is none."""


class CrashOnce(LoadFileScheduling):
    """`--dist loadfile` that never runs a fatal test twice."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Put back the tests that a process leaves, but for the one that it ran. Return that one's id."""
        crashed: str | None = None
        for unit in self.assigned_work[node].values():
            for name, done in unit.items():
                if not done and crashed is None:
                    unit[name], crashed = True, str(name)
        super().remove_node(node)
        for scope in [scope for scope, unit in self.workqueue.items() if all(unit.values())]:
            del self.workqueue[scope]
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process the next file; more of them where what is left of a file is too little to go on with."""
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < PENDING_MIN:
            if self.workqueue:
                self._assign_work_unit(node)
            else:
                node.shutdown()
