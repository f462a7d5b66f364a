"""Progress bars where people wait: while a model loads, and while a batch is generated."""

from __future__ import annotations

import sys
from typing import Any

from pageant.protocol.supervision import Progress


class _Bar:
    """A rich progress bar on standard error, where that is a terminal, or nothing.

    rich is imported only when one is shown.
    """

    def __init__(self, shown: bool) -> None:
        # Nobody watches a file, and a notebook needs a package for it.
        self._shown = shown and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _open(self, description: str, total: int, *columns: Any) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            *columns,
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(description, total=total, rate="")


class LoadProgress(_Bar):
    """Shows the progress of loading weights."""

    def update(self, progress: Progress) -> None:
        """Takes in a progress message."""
        if not self._shown:
            return
        if self._bar is None:
            from rich.progress import DownloadColumn

            self._open(progress.what, progress.total, DownloadColumn())
        self._bar.update(self._task, completed=progress.done, total=progress.total)


class BatchProgress(_Bar):
    """Shows how many requests of a batch are complete, and the rate of tokens."""

    def __init__(self, shown: bool, total: int) -> None:
        super().__init__(shown and total > 0)
        if self._shown:
            from rich.progress import MofNCompleteColumn, TextColumn

            self._open("generating", total, MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))

    def update(self, num_finished: int, num_tokens: int) -> None:
        """Takes in where the batch is."""
        if self._bar is None:
            return
        elapsed = self._bar.tasks[0].elapsed or 0.0
        rate = f"{num_tokens / elapsed:,.0f} tokens/s" if elapsed > 0 else ""
        self._bar.update(self._task, completed=num_finished, rate=rate)
