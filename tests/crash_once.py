"""Runs a test file in one process, and goes on behind a test that ended its process.

pytest-xdist's own scheduler hands the unfinished rest of a file to the next process, with the fatal test still in it.
That test ends every process, until none may be started.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class CrashOnce(LoadFileScheduling):
    """`--dist loadfile` that never runs a fatal test twice."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Put back the tests that a process leaves, but for the one that it ran. Return that one's id."""
        for unit in self.assigned_work[node].values():
            for name, done in unit.items():
                if not done:
                    unit[name] = True
                    super().remove_node(node)
                    return str(name)
        found: str | None = super().remove_node(node)
        return found
