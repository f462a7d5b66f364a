"""Start of engines: how soon one answers, and the memory of all its processes.

    python -m pageant.scripts.bench.startup MODEL [--beside vllm,openvino] [--starts 5]

Ready is from the start of the process until it has generated one token; each start is timed alone. Memory is
sampled in one further start, through loading and a batch: it costs time, so that start is not timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from pageant.scripts.bench.engine_process import EngineFailed, EngineProcess, exit_when_asked
from pageant.scripts.bench.peers.environments import HOME, supports
from pageant.scripts.report import machine

WORKLOAD = "batch"
KV_GIB = 4


def startup(engine: str, model: Path, starts: int, home: Path, kv_gib: int = KV_GIB) -> dict[str, Any]:
    """Seconds until ready, of each start, and the peak of memory: of the weights as they are, or else of int8."""
    quantization = None if supports(engine, None) else "int8"
    job: dict[str, Any] = {"quantization": quantization, "kv_gib": kv_gib, "home": home}
    seconds = []
    try:
        for _ in range(starts):
            with EngineProcess(engine, model, [WORKLOAD], **job) as process:
                seconds.append(process.ready_seconds)
        process = EngineProcess(engine, model, [WORKLOAD], sample_memory=True, **job)
        try:
            process.run(WORKLOAD)
        finally:
            peak = process.close()
    except EngineFailed as error:
        return {"failed": str(error)}
    assert peak is not None
    return {
        "version": process.version,
        "quantization": quantization,
        "ready_seconds": round(statistics.median(seconds), 2),
        "starts": [round(one, 2) for one in seconds],
        "kv_gib": kv_gib,
        "peak_pss_gib": round(peak / 2**30, 2),
    }


def main() -> None:
    """Prints a row per engine, as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--beside", default="", help="peers, with commas between")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--kv-gib", type=int, default=KV_GIB)
    parser.add_argument("--home", type=Path, default=HOME, help="of the peers' environments")
    options = parser.parse_args()
    exit_when_asked()
    engines = ["pageant", *filter(None, options.beside.split(","))]
    found = {
        engine: startup(engine, options.model, options.starts, options.home, options.kv_gib)
        for engine in engines
    }
    print(json.dumps({"machine": machine(), "startup": found}, indent=1))


if __name__ == "__main__":
    main()
