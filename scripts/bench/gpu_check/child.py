"""Runs one section in this process: `python -m pageant.scripts.bench.gpu_check.child NAME --cases FILE --seconds S`.

A section is the function `run(recorder, tiny)` of a module of this package. It returns normally whatever its cases did;
a process that ends otherwise crashed.
"""

from __future__ import annotations

import argparse
import faulthandler
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from pageant.scripts.bench.gpu_check.cases import FAULTS, Recorder, describe

_MODULES = {"kernels": "testing", "models": "testing"}
_CLOSING_SECONDS = 2.0

SectionRun = Callable[[Recorder, bool], None]
"""Runs a section; with True on the CPU, with small shapes."""


def section_named(name: str) -> SectionRun:
    """Return what runs a section."""
    module = import_module(f"pageant.scripts.bench.gpu_check.{_MODULES.get(name, name)}")
    run: SectionRun = module.run
    return run


def main(find: Callable[[str], SectionRun] = section_named) -> None:
    """Run the section that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section")
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="after which this process is killed")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--fault", choices=FAULTS)
    options = parser.parse_args()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    seconds = options.seconds - _CLOSING_SECONDS
    recorder = Recorder(options.section, options.cases, seconds, options.fault)
    try:
        find(options.section)(recorder, options.tiny)
    except BaseException as error:
        recorder.add("the section itself", error=describe(error))
        raise


if __name__ == "__main__":
    main()
