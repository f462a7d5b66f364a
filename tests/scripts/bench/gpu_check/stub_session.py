"""A session of the real frame whose sections record two cases and start a process that would outlive them.

    python stub_session.py FOLDER SECTION=FAULT,...

Called with another name than a folder's (`child NAME ...`) it is one of those sections.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from pageant.scripts.bench.gpu_check import child
from pageant.scripts.bench.gpu_check.__main__ import finish, planted
from pageant.scripts.bench.gpu_check.cases import Recorder
from pageant.scripts.bench.gpu_check.sections import SECTIONS, Section
from pageant.scripts.bench.gpu_check.session import CASES, Session


def run_section(recorder: Recorder, tiny: bool) -> None:
    """Run a section in a process group of its own, as an engine's nodes are."""
    stray = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with recorder.contain("contained"):
        recorder.add("first", stray=stray.pid)
    with recorder.contain("contained"):
        raise ValueError("only this case's")
    recorder.add("last")


def main(folder: Path, faults: dict[str, str]) -> int:
    def command(section: Section, seconds: float) -> list[str]:
        fault = ["--fault", faults[section.name]] if section.name in faults else []
        cases = ["--cases", str(folder / CASES), "--seconds", str(seconds)]
        return [sys.executable, __file__, "child", section.name, *cases, *fault]

    sections = [
        replace(section, seconds=3.1 if faults.get(section.name) == "hang" else 30.0) for section in SECTIONS
    ]
    session = Session(
        folder, sections, command, environment=os.environ, working_folder=Path.cwd(), budget=300.0, echo=print
    )
    session.run()
    return finish(session)


if __name__ == "__main__":
    if sys.argv[1] == "child":
        del sys.argv[1]
        child.main(lambda name: run_section)
    else:
        sys.exit(main(Path(sys.argv[1]), planted(sys.argv[2])))
