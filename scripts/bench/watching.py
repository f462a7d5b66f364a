"""`pageant bench watching`: what it costs to be watched.

Counting is always on: its cost is that of its functions, for a step of so many rows. A scrape costs the handlers of
those who are asked, while they serve as many streams. Tracing is held against the same engine without it, in pairs of
runs taken in turn.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Annotated, Any, cast

import numpy as np
import typer

import pageant
from pageant.actors.executor.metering import Metering as ExecutorMetering
from pageant.actors.frontend.metering import Metering
from pageant.actors.observer.exposition import exposition
from pageant.protocol.statistics import GetObservation, Observation
from pageant.protocol.stepping import StepPlan
from pageant.scripts.bench.progress import rounds
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.report import Json, in_turns, publish

ROWS = 256
SCRAPES = 20
TRACED = {"traced": {}, "every step traced": {"detailed_traces": True}}


def bench(
    json: Json = None,
    runs: Annotated[int, typer.Option(help="Of each engine; the median of the ratios counts.")] = 5,
    tokens: Annotated[int, typer.Option(help="Of each of the 256 outputs.")] = 64,
    threads: Annotated[int, typer.Option(help="That compute.")] = 2,
) -> None:
    """Measure what counting, a scrape and tracing cost."""
    settings: dict[str, Any] = {
        **{"placement": "one", "threads": threads, "kv_cache_memory": "256MiB", "progress": False},
        **{"enable_prefix_caching": False, "max_num_seqs": ROWS},
    }
    figures = _counting() | _scraping(settings, tokens) | _tracing(settings, tokens, runs)
    publish(figures, [f"{name:>52}: {value}" for name, value in figures.items()], json)


def _counting() -> dict[str, Any]:
    """Microseconds for a step, of the frontend that gets all its rows and of the executor."""
    frontend, executor = Metering(), ExecutorMetering()
    plan = SimpleNamespace(num_tokens=np.ones(ROWS, np.int32), rows=np.arange(ROWS, dtype=np.int32))

    frontend.stepped(ROWS, 0, 1.0)
    sequences = [SimpleNamespace(last_token_at=1.0) for _ in range(ROWS)]

    def stepped() -> None:
        num_steady = num_tokens = 0
        for sequence in sequences:  # as the frontend has it, within its loop over the rows
            num_tokens += 1
            if sequence.last_token_at == frontend.stepped_at:
                num_steady += 1
            sequence.last_token_at = 1.0
        frontend.stepped(num_tokens, num_steady, 1.0)

    return {
        "counting, frontend, us per step of 256 rows": _microseconds(stepped),
        "counting, executor, us per step of 256 rows": _microseconds(
            lambda: executor.stepped(cast(StepPlan, plan), 1.0, 1.01)
        ),
    }


def _microseconds(work: Callable[[], None], calls: int = 2000, repeats: int = 7) -> float:
    took = []
    for _ in range(repeats):
        began = time.thread_time()  # of this thread alone, whoever else is here
        for _ in range(calls):
            work()
        took.append((time.thread_time() - began) / calls)
    return round(1e6 * min(took), 2)


def _scraping(settings: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Microseconds of each actor, for a scrape while 256 requests run."""
    with pageant.LLM(DEMO_MODEL, actors={"observer": {}}, **settings) as llm:
        session = llm._session
        generating = threading.Thread(target=_generate, args=(llm, 4 * tokens))
        generating.start()
        running: list[int] = []
        for _ in range(SCRAPES):
            seen = cast(Observation, session.ask("observer", GetObservation()))
            running.append(max(one.num_running for one in seen.schedulers.values()))
            time.sleep(0.05)
        generating.join()
    page = _microseconds(lambda: _ignore(exposition(seen)), 50)
    found: dict[str, Any] = {"requests that ran while it was scraped, median": statistics.median(running)}
    for node in seen.nodes.values():
        for name, actor in node.actors.items():
            for kind, handled in actor.kinds.items():
                if kind.endswith("Statistics") and kind.startswith("Get"):
                    found[f"scrape, {name}, us"] = round(1e6 * handled.seconds / handled.count, 1)
    return found | {"scrape, page of text, us": page}


def _ignore(_: object) -> None:
    """Do nothing."""


def _tracing(settings: dict[str, Any], tokens: int, runs: int) -> dict[str, Any]:
    """CPU time with tracing, that of the collector here included, as a multiple of that without."""
    found: dict[str, Any] = {}
    with _Collector() as collector, pageant.LLM(DEMO_MODEL, **settings) as plain:
        _generate(plain, tokens)
        for name, more in TRACED.items():
            with pageant.LLM(DEMO_MODEL, otlp_traces_endpoint=collector.url, **settings | more) as traced:
                _generate(traced, tokens)
                ratios = []
                for run in rounds("traced and plain", runs):
                    took = {llm: _generate(llm, tokens) for llm in in_turns((traced, plain), run)}
                    ratios.append(took[traced] / took[plain])
            found[f"CPU time, {name}, over that without"] = round(statistics.median(ratios), 3)
        found["spans that came"] = collector.spans
    return found


def _generate(llm: pageant.LLM, tokens: int) -> float:
    """Seconds of CPU time for 256 prompts, in all threads: whoever else is here does not count."""
    params = pageant.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    prompts = [f"def function_{index}(x):" for index in range(ROWS)]
    began = time.process_time()
    llm.generate(prompts, params)
    return time.process_time() - began


class _Collector:
    """Takes spans, and only counts them."""

    def __init__(self) -> None:
        self.spans = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.spans += body.count(b'"spanId"')
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> _Collector:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
