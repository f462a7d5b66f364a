"""Progress for people who wait: a bar on standard error, and nothing else."""

from __future__ import annotations

import io
import re
import sys

import pytest
import rich.console

from pageant.actors.client.progress import BatchProgress, LoadProgress
from pageant.protocol.supervision import Progress


@pytest.fixture
def terminal(monkeypatch):
    """A terminal in place of standard error."""
    written = io.StringIO()
    make = rich.console.Console
    monkeypatch.setattr(
        "rich.console.Console",
        lambda stderr: make(file=written, force_terminal=True, width=120, legacy_windows=False),
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    return written


def test_a_batch_shows_how_many_are_done_and_tokens_per_second(terminal):
    with BatchProgress(True, 8) as bar:
        bar.update(3, 1200)
        task = bar._bar.tasks[0]
        assert (task.completed, task.total) == (3, 8)
        assert re.fullmatch(r"[\d,]+ tokens/s", task.fields["rate"])
        bar._bar.refresh()
    assert "generating" in terminal.getvalue() and "3/8" in terminal.getvalue()
    assert "tokens/s" in terminal.getvalue()


def test_nothing_is_shown_where_it_is_not_wanted_or_there_is_nothing_to_wait_for(terminal):
    for bar in (BatchProgress(False, 8), BatchProgress(True, 0)):
        with bar:
            bar.update(1, 10)
    with LoadProgress(False) as bar:
        bar.update(Progress(name="executor", what="weights", done=1, total=2))
    assert terminal.getvalue() == ""


def test_loading_shows_bytes(terminal):
    with LoadProgress(True) as bar:
        bar.update(Progress(name="executor", what="weights", done=1_000_000, total=4_000_000))
        bar._bar.refresh()
    assert "weights" in terminal.getvalue() and "1.0/4.0 MB" in terminal.getvalue()
