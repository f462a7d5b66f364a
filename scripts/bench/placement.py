"""`pageant bench placement`: what distance costs, and which actors deserve a process of their own (what is behind
`placement: auto`).

Each layout serves the workload in turn, in every round beside the others and in another order. It does so with nothing
else in the user's process, and with a thread of the user's that computes in Python all the while, and so competes for
the interpreter. `of_the_best` is the median, over the rounds, of a layout's throughput as a share of the best one's.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import Annotated, Any

import typer

from pageant.actors.client.llm import LLM
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.workloads import Workload, end_id_of, workload
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json, in_turns, publish, table


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
COLUMNS = ("layout", "of the best", "tokens/s", "tokens/s beside a busy thread", "ready, s")
FIGURES = ("tokens_per_second", "beside_a_busy_thread", "ready_seconds")


@with_engine_options
def bench(
    engine: dict[str, Any],
    workload_: Annotated[str, typer.Option("--workload", help="What is served.")] = "overhead",
    runs: Annotated[int, typer.Option(min=1, help="Rounds of all layouts.")] = 5,
    json: Json = None,
) -> None:
    """Throughput of placements, alone and beside a busy thread of the user's, and how far each is from the best."""
    work = workload(workload_)
    found = measure(work, runs, {"enable_prefix_caching": False} | engine)
    layouts = summary(found)
    figures = {"workload": workload_, "rounds": runs, "settings": _settings(engine), "layouts": layouts}
    rows = [(name, *(f"{value:,.2f}" for value in row.values())) for name, row in layouts.items()]
    publish(figures, table(COLUMNS, rows), json)


def measure(work: Workload, runs: int, settings: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Each figure of each layout, by round."""
    found: dict[str, dict[str, list[float]]] = {name: {figure: [] for figure in FIGURES} for name in LAYOUTS}
    for number in rounds("all layouts", runs):
        for name, arguments in in_turns(list(LAYOUTS.items())[::-1], number):
            for figure, value in _serve(work, {**arguments, **settings}).items():
                found[name][figure].append(value)
    return found


def summary(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Medians, and each layout's share of the throughput of the one with the best median, round by round."""
    rates = {name: figures["tokens_per_second"] for name, figures in found.items()}
    best = max(rates.values(), key=statistics.median)
    return {
        name: {
            "of_the_best": round(
                statistics.median(one / other for one, other in zip(rates[name], best, strict=True)), 3
            ),
            **{figure: round(statistics.median(values), 2) for figure, values in figures.items()},
        }
        for name, figures in found.items()
    }


def _settings(engine: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in engine.items() if name != "model"}


def _serve(work: Workload, arguments: dict[str, Any]) -> dict[str, float]:
    prompts = work.prompts(end_id=end_id_of(arguments["model"]))
    params = SamplingParams(temperature=0, max_tokens=work.output_tokens, ignore_eos=True)
    began = time.perf_counter()
    with LLM(progress=False, **arguments) as llm:
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
