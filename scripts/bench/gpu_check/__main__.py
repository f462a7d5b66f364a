"""Runs a session, or publishes the figures of one that was run. See `docs/gpu.md`."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

from pageant.scripts.bench.gpu_check.cases import FAULTS
from pageant.scripts.bench.gpu_check.environment import ROOT, make_environment
from pageant.scripts.bench.gpu_check.figures import Figures
from pageant.scripts.bench.gpu_check.sections import SECTIONS, Section, choose_sections
from pageant.scripts.bench.gpu_check.session import CASES, TABLE, Session, read_session
from pageant.scripts.bench.gpu_check.table import failed, session_table

_BEGAN = time.monotonic()
_BUDGET = 430.0
_PATIENCE = 4  # in a rehearsal: an interpreter on a busy machine needs more time than a GPU


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the session's files")
    parser.add_argument("--budget", type=float, help=f"seconds for all of it, {_BUDGET:.0f} unless said")
    parser.add_argument("--only", help="sections, with commas between them; 'tune' runs only when named here")
    parser.add_argument("--tiny", action="store_true", help="rehearse on the CPU, with small shapes")
    fault = f"rehearse a fault ({', '.join(FAULTS)}) after a section's first case; 'all' is every section"
    parser.add_argument("--break", dest="faults", default="", metavar="SECTION=FAULT,...", help=fault)
    publishing = "run nothing; write the figures of the session in --out to a file"
    parser.add_argument("--write", type=Path, metavar="FILE", help=publishing)
    return parser.parse_args(arguments)


def planted(faults: str) -> dict[str, str]:
    """Return the fault of each section. Raises ValueError where one is unknown."""
    found: dict[str, str] = {}
    for part in filter(None, faults.split(",")):
        name, _, fault = part.partition("=")
        known = [section.name for section in SECTIONS]
        if fault not in FAULTS or name not in ("all", *known):
            raise ValueError(f"--break has {part!r}; expected SECTION=FAULT, with one of {', '.join(FAULTS)}")
        found.update(dict.fromkeys(known if name == "all" else [name], fault))
    return found


def run_session(options: argparse.Namespace) -> int:
    """Run the sections and print the table; 1 where a test failed."""
    try:
        sections, faults = choose_sections(options.only), planted(options.faults)
    except ValueError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    out, budget = options.out.resolve(), options.budget or _BUDGET
    if options.tiny:
        sections = tuple(replace(section, seconds=_PATIENCE * section.seconds) for section in sections)
        budget = options.budget or _PATIENCE * _BUDGET

    def command(section: Section, seconds: float) -> list[str]:
        child = [sys.executable, "-m", "pageant.scripts.bench.gpu_check.child", section.name]
        tiny = ["--tiny"] if options.tiny else []
        fault = ["--fault", faults[section.name]] if section.name in faults else []
        return [*child, "--cases", str(out / CASES), "--seconds", f"{seconds:.1f}", *tiny, *fault]

    session = Session(
        out,
        sections,
        command,
        environment=make_environment(interprets=options.tiny),
        working_folder=ROOT,
        budget=budget,
        began=_BEGAN,
        echo=_say,
    )
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        session.run()
    except KeyboardInterrupt:
        print("gpu_check: interrupted", file=sys.stderr)
    return finish(session)


def finish(session: Session) -> int:
    """Print and keep the table of a session; returns the exit status, 1 where a test failed or a section is missing."""
    results, cases = read_session(session.folder)
    lines = session_table(results, cases)
    (session.folder / TABLE).write_text("\n".join(lines) + "\n")
    _say("\n".join(lines))
    return 0 if session.is_complete and not failed(results, Figures(cases)) else 1


def _say(lines: str) -> None:
    """Print, as long as somebody reads: the session goes on without."""
    with contextlib.suppress(OSError):
        print(lines, flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = options_of(arguments)
    if options.write is not None:
        from pageant.scripts.bench.gpu_check.publishing import publish

        return publish(options.out, options.write)
    return run_session(options)


if __name__ == "__main__":
    status = main()
    os._exit(status)  # nothing that a section left behind keeps this process
