"""`pageant bench throughput`: a workload of fixed prompts, offline, in turn with peers if asked."""

from __future__ import annotations

import contextlib
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from pageant.protocol.errors import BadRequest
from pageant.scripts.bench.engine_process import KV_GIB, EngineProcess
from pageant.scripts.bench.peers.environments import HOME, SHOWN_HOME, peer_module, supports
from pageant.scripts.bench.peers.pageant import load
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.workloads import Workload, end_id_of, workload
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json, publish


@with_engine_options
def bench(
    engine: dict[str, Any],
    name: Annotated[str, typer.Option("--workload", help="batch, single, long or overhead.")] = "batch",
    runs: Annotated[int, typer.Option(help="The median counts.")] = 3,
    beside: Annotated[str | None, typer.Option(help="Peers to run in turn with: vllm,openvino,...")] = None,
    home: Annotated[
        Path, typer.Option("--peers", help="The folder of the peers' environments.", show_default=SHOWN_HOME)
    ] = HOME,
    json: Json = None,
) -> None:
    """A workload of fixed prompts, offline: seconds, tokens per second, time until ready.

    Prefix caching is off, as it is for the peers.
    """
    work = workload(name)
    peers = beside.split(",") if beside else []
    quantization = engine.pop("quantization", None)
    for peer in peers:
        peer_module(peer)
        if not supports(peer, quantization):
            raise BadRequest(f"{peer} has no {quantization or 'unquantised'} weights here", "beside")
    with contextlib.ExitStack() as stack:
        ours = _Ours(engine, quantization, work)
        running: dict[str, Any] = {"pageant": ours}
        for peer in peers:
            process = EngineProcess(
                peer,
                Path(engine["model"]),
                [name],
                quantization=quantization,
                home=home,
            )
            running[peer] = stack.enter_context(process)
        found = [{who: one.run(name) for who, one in running.items()} for _ in rounds(name, runs + 1)][1:]
    result: dict[str, Any] = {"workload": name, "quantization": quantization}
    for who, one in running.items():
        result[who] = summary(work, [each[who] for each in found], one.ready_seconds)
    for peer in peers:
        ratios = [each[peer] / each["pageant"] for each in found]
        result[peer]["speedup"] = round(statistics.median(ratios), 3)
    lines = [f"{name}: {work}", *(_line(who, result[who]) for who in running)]
    publish(result, lines, json)


def _line(who: str, row: dict[str, Any]) -> str:
    return (
        f"{who:>14}: {row['seconds']:.2f} s, {row['output_tokens_per_second']:.1f} output tokens/s, "
        f"ready after {row['ready_seconds']:.1f} s"
        + (f"; we are {row['speedup']:.2f}x as fast" if "speedup" in row else "")
    )


class _Ours:
    """Pageant in this process, so that a topology finds classes beside it."""

    def __init__(self, engine: dict[str, Any], quantization: str | None, work: Workload) -> None:
        began = time.perf_counter()
        settings = {key: value for key, value in engine.items() if key != "model"}
        job = {"model": engine["model"], "quantization": quantization, "settings": settings}
        self._generate = load(job | {"kv_gib": KV_GIB})
        self._work, self._prompts = work, work.prompts(end_id=end_id_of(engine["model"]))
        self._generate(self._prompts[:1], 1)
        self.ready_seconds = time.perf_counter() - began

    def run(self, name: str) -> float:
        began = time.perf_counter()
        tokens = self._generate(self._prompts, self._work.output_tokens)
        assert tokens == self._work.requests * self._work.output_tokens, "every request generates to its end"
        return time.perf_counter() - began


def summary(work: Workload, seconds: list[float], ready: float) -> dict[str, Any]:
    """One engine's figures on a workload."""
    median = statistics.median(seconds)
    return {
        "seconds": round(median, 3),
        "runs": [round(one, 3) for one in seconds],
        "output_tokens_per_second": round(work.requests * work.output_tokens / median, 2),
        "ready_seconds": round(ready, 2),
    }
