"""A session: its sections one after another within a budget, and what is kept of each."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pageant.scripts.bench.gpu_check.cases import read_cases
from pageant.scripts.bench.gpu_check.processes import Ending, adopt_orphans, run_process
from pageant.scripts.bench.gpu_check.sections import Section

__all__ = ["CASES", "OUTPUT", "SESSION", "TABLE", "SectionResult", "Session", "read_session"]

SESSION, CASES, OUTPUT, TABLE = "session.json", "cases.jsonl", "output.log", "table.txt"

_CLOSING_SECONDS = 8.0  # of the budget, for killing the last section and for the table
_STARTING_SECONDS = 3.0  # a section with less time than this is not started
_TAIL = 1500
_QUIET = ("passed", "skipped")  # tests that are not printed, so that the others are seen

Command = Callable[[Section, float], Sequence[str]]


@dataclass(frozen=True)
class SectionResult:
    """End of a section. `tail` is the end of its output, where it did not end well."""

    name: str
    status: str
    seconds: float
    tests: bool
    tail: str = ""

    @property
    def well(self) -> bool:
        """Tell whether it came to its end."""
        return self.status == "done"


class Session:
    """Runs sections and keeps `session.json` up to date after each.

    Args:
        folder: for the files; made where it is missing.
        command: what runs a section, given the seconds that it has.
        budget: seconds for all of it, from `began` (of `time.monotonic`).
        echo: is told each line of JSON as it is written, but for tests that passed.
    """

    def __init__(
        self,
        folder: Path,
        sections: Sequence[Section],
        command: Command,
        *,
        environment: Mapping[str, str],
        working_folder: Path,
        budget: float,
        began: float | None = None,
        echo: Callable[[str], None] = print,
    ) -> None:
        self.folder, self.results = folder, list[SectionResult]()
        self._sections, self._command, self._echo = sections, command, echo
        self._environment, self._working_folder = environment, working_folder
        self._budget = budget
        self._began = time.monotonic() if began is None else began
        self._echoed = 0
        folder.mkdir(parents=True, exist_ok=True)
        for name in (SESSION, CASES, OUTPUT, TABLE):
            (folder / name).unlink(missing_ok=True)

    def run(self) -> None:
        """Run every section that there is time for; none of them can end this."""
        adopt_orphans()
        self._save()
        for index, section in enumerate(self._sections):
            later = sum(other.least for other in self._sections[index + 1 :])
            seconds = self._seconds_for(section, later)
            if seconds < _STARTING_SECONDS:
                self.results.append(SectionResult(section.name, "no time left", 0.0, section.tests))
            else:
                self.results.append(self._run(section, seconds))
            self._save()

    @property
    def is_complete(self) -> bool:
        """Tell whether every section had its turn: no signal ended the session before."""
        return len(self.results) == len(self._sections)

    def _seconds_for(self, section: Section, later: float) -> float:
        left = self._budget - _CLOSING_SECONDS - (time.monotonic() - self._began)
        # Where the budget is smaller than all that is kept for sections, each is left its share of it.
        kept = later * min(1.0, max(0.0, left) / (section.least + later))
        return min(section.seconds, left - kept)

    def _run(self, section: Section, seconds: float) -> SectionResult:
        with open(self.folder / OUTPUT, "a", errors="replace") as output:
            output.write(f"===== {section.name}: {seconds:.0f} s at most\n")
            output.flush()
            begins_at = output.tell()
            try:
                ending = run_process(
                    self._command(section, seconds),
                    environment=self._environment,
                    folder=self._working_folder,
                    output=output,
                    seconds=seconds,
                    look=self._echo_new,
                )
            except OSError as error:
                return SectionResult(section.name, f"not started: {error}", 0.0, section.tests)
        status = _status(ending)
        tail = "" if status == "done" else self._output_from(begins_at)[-_TAIL:]
        return SectionResult(section.name, status, round(ending.seconds, 1), section.tests, tail)

    def _output_from(self, place: int) -> str:
        with open(self.folder / OUTPUT, errors="replace") as output:
            output.seek(place)
            return output.read().strip()

    def _echo_new(self) -> None:
        """Print the whole lines of the cases' file that have not been printed yet."""
        with contextlib.suppress(FileNotFoundError), open(self.folder / CASES, "rb") as cases:
            cases.seek(self._echoed)
            whole, newline, _ = cases.read().rpartition(b"\n")
            self._echoed += len(whole + newline)
            for line in whole.decode(errors="replace").splitlines():
                if not any(f'"outcome": "{outcome}"' in line for outcome in _QUIET):
                    self._echo(line)

    def _save(self) -> None:
        written = {
            "sections": [asdict(result) for result in self.results],
            "seconds": round(time.monotonic() - self._began, 1),
            "cases": read_cases(self.folder / CASES),
        }
        part = self.folder / f"{SESSION}.part"
        part.write_text(json.dumps(written, indent=1) + "\n")
        os.replace(part, self.folder / SESSION)


def _status(ending: Ending) -> str:
    if ending.at_limit:
        return f"hung: killed after {ending.seconds:.0f} s"
    if ending.code < 0:
        return f"crashed: signal {-ending.code}"
    return "done" if ending.code == 0 else f"failed: exit {ending.code}"


def read_session(folder: Path) -> tuple[list[SectionResult], list[dict[str, Any]]]:
    """Return the results of the sections of a session and its cases. Raises FileNotFoundError where there is none."""
    written = json.loads((folder / SESSION).read_text())
    return [SectionResult(**result) for result in written["sections"]], written["cases"]
