"""Peers by hand.

python -m pageant.scripts.bench.peers setup vllm openvino llama_cpp
python -m pageant.scripts.bench.peers run vllm MODEL batch [--quantization int8] [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from pageant.scripts.bench.engine_process import EngineProcess, exit_when_asked
from pageant.scripts.bench.peers.environments import HOME, PEERS, setup


def main() -> None:
    """Makes environments, or prints one line of JSON for a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, default=HOME, help="of environments and converted checkpoints")
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("setup")
    making.add_argument("peers", nargs="+", choices=PEERS)
    running = commands.add_parser("run")
    running.add_argument("peer", choices=("pageant", *PEERS))
    running.add_argument("model", type=Path)
    running.add_argument("workload")
    running.add_argument("--quantization", choices=("int8", "int4"))
    running.add_argument("--kv-gib", type=int, default=2)
    running.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    exit_when_asked()
    if options.command == "setup":
        for peer in options.peers:
            print(f"{peer} is ready in {setup(peer, options.home)}")
    else:
        print(json.dumps(_run(options)))


def _run(options: argparse.Namespace) -> dict[str, object]:
    engine = EngineProcess(
        options.peer,
        options.model,
        [options.workload],
        quantization=options.quantization,
        kv_gib=options.kv_gib,
        home=options.home,
        sample_memory=True,
    )
    try:
        engine.run(options.workload)  # warms up
        runs = [engine.run(options.workload) for _ in range(options.runs)]
    finally:
        peak = engine.close()
    return {
        "engine": options.peer,
        "version": engine.version,
        "workload": options.workload,
        "quantization": options.quantization,
        "seconds": round(statistics.median(runs), 3),
        "runs": [round(one, 3) for one in runs],
        "ready_seconds": round(engine.ready_seconds, 2),
        "peak_pss_bytes": peak,
    }


if __name__ == "__main__":
    main()
