"""Pageant and its peers on the same workloads, in turn, on one machine: the figures of docs/benchmarks.

    python -m pageant.scripts.bench.compare MODEL TINY_MODEL

The figures go to docs/benchmarks/cpu.json. A run that leaves something out needs --out, or --update: that puts its
figures in the place of the same ones in there, with their own date, for groups in whose minutes others had the machine.

Every group of workloads that share weights has its engines loaded at once, and they run in turn (A B C, A B C,
...) so that a machine that changes its speed changes it for all; the median of each counts. Then every engine is
started alone, several times, for the time until it is ready and the memory of all its processes. An engine that
fails is reported with what it said, and the others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pageant.scripts.bench.engine_process import EngineFailed, EngineProcess, exit_when_asked
from pageant.scripts.bench.peers.environments import HOME, PEERS, supports
from pageant.scripts.bench.startup import startup
from pageant.scripts.report import machine, machine_speed

PAUSE_SECONDS = 0.5  # in which the threads of the engine before go to sleep
OUT = Path(__file__).parents[2] / "docs" / "benchmarks" / "cpu.json"


@dataclass(frozen=True)
class Group:
    """Workloads that engines run with the same weights loaded."""

    tiny: bool
    quantization: str | None
    workloads: tuple[str, ...]


GROUPS = {
    "bf16": Group(False, None, ("single", "long", "batch")),
    "tiny": Group(True, None, ("overhead",)),
    "int8": Group(False, "int8", ("single", "batch")),
    "int4": Group(False, "int4", ("single", "batch")),
}
UNQUANTIZED = "pageant_bf16"
"""Ours with the weights as they are, in turn with those that are quantised: by how much a stream gains shows only where
memory is as fast for both."""
# One padded batch at a time says nothing about a stream of 512 requests; and batches need not be told again.
LEFT_OUT = {("transformers", "overhead"), (UNQUANTIZED, "batch")}


def compare(group: Group, model: Path, engines: list[str], runs: int, home: Path) -> dict[str, Any]:
    """Return by workload and engine the median of `runs` rounds, and each of them."""
    found: dict[str, Any] = {}
    with _started(group, model, engines, home) as (running, failed):
        for name in group.workloads:
            rows: dict[str, Any] = dict(failed)
            seconds: dict[str, list[float]] = {engine: [] for engine in running}
            for turn in range(runs + 1):
                for engine, process in running.items():
                    if engine in rows or (engine, name) in LEFT_OUT:
                        continue
                    time.sleep(PAUSE_SECONDS)
                    try:
                        took = process.run(name)
                    except EngineFailed as error:
                        rows[engine] = {"failed": str(error)}
                        continue
                    if turn > 0:  # the first warms up
                        seconds[engine].append(took)
                        _say(f"{group.quantization or 'as it is'} {name}: {engine} {took:.2f} s")
            rows |= {
                engine: {"seconds": round(statistics.median(took), 3), "runs": [round(t, 3) for t in took]}
                for engine, took in seconds.items()
                if engine not in rows and took
            }
            found[name] = rows
    return found


@contextlib.contextmanager
def _started(
    group: Group, model: Path, engines: list[str], home: Path
) -> Iterator[tuple[dict[str, EngineProcess], dict[str, Any]]]:
    """The engines that start, and what the others said."""
    running: dict[str, EngineProcess] = {}
    failed: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for engine in [*engines, *[UNQUANTIZED] * (group.quantization is not None)]:
            name, quantization = engine, group.quantization
            if engine == UNQUANTIZED:
                name, quantization = "pageant", None
            if not supports(name, quantization):
                continue
            try:
                process = EngineProcess(
                    name, model, list(group.workloads), quantization=quantization, home=home
                )
            except EngineFailed as error:
                _say(str(error))
                failed[engine] = {"failed": str(error)}
            else:
                running[engine] = stack.enter_context(process)
        yield running, failed


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, and as `partial` those that leave something out: such a run does not replace a whole one unasked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("tiny_model", type=Path)
    parser.add_argument("--home", type=Path, default=HOME, help="of the peers' environments")
    parser.add_argument("--beside", default=",".join(PEERS), help="which peers")
    parser.add_argument("--groups", default=",".join(GROUPS), help="which groups of workloads")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--starts", type=int, default=3, help="of each engine; 0 leaves them out")
    parser.add_argument("--out", type=Path, help=f"by default {OUT}, unless something is left out")
    parser.add_argument("--update", action="store_true", help="keep what is there of what is left out")
    options = parser.parse_args(arguments)
    options.partial = [
        f"--{name} {given}"
        for name, whole, given in (("beside", PEERS, options.beside), ("groups", GROUPS, options.groups))
        if not set(whole) <= set(given.split(","))
    ] + ["--starts 0"] * (not options.starts)
    if options.partial and options.out is None and not options.update:
        parser.error(
            f"{' '.join(options.partial)} leaves something out of what {OUT} has; expected --out FILE or --update"
        )
    options.out = options.out or OUT
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures every group, then starts; what there is so far is in a file beside, which at the end replaces the other:
    a run that is ended keeps what it has, and harms nothing."""
    options = parsed(arguments)
    exit_when_asked()
    began = time.perf_counter()
    unfinished = options.out.with_name(f"{options.out.name}.part")
    engines = ["pageant", *filter(None, options.beside.split(","))]
    about: dict[str, Any] = {"machine": machine() | machine_speed(), "command": _command(options)}
    result = about | {"workloads": {}, "startup": {}}
    if options.update:
        result = json.loads(options.out.read_text())
        result.setdefault("updates", []).append(about)

    def save(**figures: Any) -> None:
        about.update(minutes=round((time.perf_counter() - began) / 60, 1))
        result.update(figures if options.update else figures | about)
        unfinished.write_text(json.dumps(result, indent=1) + "\n")

    for key in options.groups.split(","):
        group = GROUPS[key]
        path = options.tiny_model if group.tiny else options.model
        found = compare(group, path, engines, options.runs, options.home)
        save(workloads=result["workloads"] | {key: found})
    for engine in engines:
        if options.starts:
            _say(f"starting {engine} {options.starts} times")
            found = startup(engine, options.model, options.starts, options.home)
            save(startup=result["startup"] | {engine: found})
    unfinished.replace(options.out)
    _say(f"{options.out}: {about['minutes']} minutes")


def _command(options: argparse.Namespace) -> str:
    start = "python -m pageant.scripts.bench.compare MODEL TINY_MODEL"
    return " ".join([start, f"--runs {options.runs}", *options.partial, *["--update"] * options.update])


if __name__ == "__main__":
    main()
