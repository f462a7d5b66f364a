"""Which actors deserve a process of their own: the measurement behind `placement: auto`.

    python -m pageant.scripts.bench.placement MODEL [--workload overhead] [--runs 5] [--json]

Each layout serves the workload in turn, `runs` times: with nothing else in the user's process, and with a
thread of the user's that computes in Python all the while (and so competes for the interpreter).
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from typing import Any

from pageant.actors.frontend.llm import LLM
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.bench.report import machine
from pageant.scripts.bench.workloads import workload


def _apart(*actors: str) -> dict[str, Any]:
    """Keyword arguments that give these actors a process each."""
    return {
        "placement": "one",
        "nodes": {"front": {}, **{actor: {"process": True} for actor in actors}},
        "actors": {actor: {"node": actor} for actor in actors},
    }


LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {"placement": "one"},
    "executor apart": _apart("executor"),
    "executor and detokenizer apart": _apart("executor", "detokenizer"),
    "each": {"placement": "each"},
}


def measure(model: str, name: str, runs: int, settings: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Median output tokens per second, quiet and beside a busy thread, and seconds until ready, by layout."""
    found: dict[str, dict[str, list[float]]] = {
        layout: {"tokens_per_second": [], "beside_a_busy_thread": [], "ready_seconds": []}
        for layout in LAYOUTS
    }
    for _ in range(runs):
        for layout, arguments in LAYOUTS.items():
            for figure, value in _serve(model, name, {**arguments, **settings}).items():
                found[layout][figure].append(value)
    return {
        layout: {figure: round(statistics.median(values), 2) for figure, values in figures.items()}
        for layout, figures in found.items()
    }


def _serve(model: str, name: str, arguments: dict[str, Any]) -> dict[str, float]:
    work = workload(name)
    prompts = work.prompts()
    params = SamplingParams(temperature=0, max_tokens=work.output_tokens, ignore_eos=True)
    began = time.perf_counter()
    with LLM(model, enable_prefix_caching=False, progress=False, **arguments) as llm:
        llm.generate(prompts[0], SamplingParams(max_tokens=1))
        ready = time.perf_counter() - began

        def tokens_per_second() -> float:
            start = time.perf_counter()
            llm.generate(prompts, params)
            return work.requests * work.output_tokens / (time.perf_counter() - start)

        tokens_per_second()  # warm up
        quiet = tokens_per_second()
        with _BusyThread():
            busy = tokens_per_second()
    return {"tokens_per_second": quiet, "beside_a_busy_thread": busy, "ready_seconds": ready}


class _BusyThread:
    """A user's thread that never waits."""

    def __enter__(self) -> None:
        self._stop = False
        self._thread = threading.Thread(target=self._compute)
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop = True
        self._thread.join()

    def _compute(self) -> None:
        value = 0
        while not self._stop:
            value = (value * 31 + 7) % 1_000_003


def main() -> None:
    """Prints one row per layout, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--workload", default="overhead")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None, help="that the executor computes with")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings = {"threads": options.threads} if options.threads else {}
    layouts = measure(options.model, options.workload, options.runs, settings)
    if options.json:
        result = {
            "machine": machine(),
            "workload": options.workload,
            "settings": settings,
            "layouts": layouts,
        }
        print(json.dumps(result, indent=1))
        return
    for layout, figures in layouts.items():
        print(f"{layout:>32}: " + ", ".join(f"{name} {value:,.1f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
