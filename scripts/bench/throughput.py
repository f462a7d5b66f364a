"""`pageant bench throughput`: a workload of fixed prompts, offline, beside a peer in the same run if asked."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

from pageant.actors.frontend.llm import LLM
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.bench.report import machine
from pageant.scripts.bench.workloads import workload

PEERS = {"transformers": "pageant.scripts.bench.peers.transformers"}


def bench(engine: dict[str, Any], name: str, *, runs: int, beside: str | None, as_json: bool) -> None:
    """Runs the workload and prints what it took. Prefix caching is off, as it is for the peers."""
    if beside is not None and beside not in PEERS:
        raise BadRequest(f"no peer {beside!r}; expected {', '.join(PEERS)}", "beside")
    ours = measure(engine, name, runs)
    result: dict[str, Any] = {"machine": machine(), "pageant": ours}
    if beside is not None:
        peer = result[beside] = measure_peer(beside, str(engine["model"]), name, runs)
        result["speedup"] = round(peer["seconds"] / ours["seconds"], 3)
    if as_json:
        print(json.dumps(result, indent=1))
        return
    for who in ("pageant", beside):
        if who is not None:
            row = result[who]
            print(
                f"{who:>14}: {row['seconds']:.2f} s, {row['output_tokens_per_second']:.1f} output tokens/s, "
                f"ready after {row['ready_seconds']:.1f} s"
            )
    if beside is not None:
        print(f"{'speedup':>14}: {result['speedup']:.2f}x")


def measure(engine: dict[str, Any], name: str, runs: int) -> dict[str, Any]:
    """The median of `runs` runs, after one request that warms up."""
    work = workload(name)
    prompts = work.prompts()
    params = SamplingParams(temperature=0, max_tokens=work.output_tokens, ignore_eos=True)
    began = time.perf_counter()
    with LLM(**{"enable_prefix_caching": False, **engine}, progress=False) as llm:
        llm.generate(prompts[0], SamplingParams(temperature=0, max_tokens=1), progress=False)
        ready = time.perf_counter() - began
        seconds = []
        for _ in range(runs):
            start = time.perf_counter()
            outputs = llm.generate(prompts, params, progress=False)
            seconds.append(time.perf_counter() - start)
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    assert tokens == work.requests * work.output_tokens, "every request generates to its end"
    return summary(name, seconds, tokens, sum(map(len, prompts)), ready)


def summary(
    name: str, seconds: list[float], output_tokens: int, input_tokens: int, ready: float
) -> dict[str, Any]:
    """One engine's figures on a workload."""
    median = statistics.median(seconds)
    return {
        "workload": name,
        "seconds": round(median, 3),
        "runs": [round(one, 3) for one in seconds],
        "output_tokens_per_second": round(output_tokens / median, 2),
        "input_tokens": input_tokens,
        "ready_seconds": round(ready, 2),
    }


def measure_peer(peer: str, model: str, name: str, runs: int) -> dict[str, Any]:
    """A peer's figures, from a process of its own."""
    command = [sys.executable, "-m", PEERS[peer], model, name, str(runs)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found
