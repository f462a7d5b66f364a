"""Decoding from quantised checkpoints, beside our own int4 and int8, and beside vLLM's CPU build on the same file.

    python -m pageant.scripts.bench.quantized.speed [MODEL] [--rows w4a16:128,w4a16:32,w8a8] [--beside vllm] [--runs 3]
        [--json FILE]

MODEL is a folder in bfloat16; without one it has the layers of Qwen3-0.6B, with random weights and a small vocabulary.
Its file is written anew in W4A16 and W8A8. The engines of a row are loaded together and run in turns, after a round
that warms up; medians count. Bars: 0.97 of our own int4 and int8, and 1.25 times vLLM. Run it on an idle machine.

Heads stay in bfloat16 in files, while our own weights have theirs in 5 or 8 bits. So the file is compared with our own
weights under `head_quantization`, which gives both the same head; and with vLLM as it is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from pageant.models.quantizing.quantizer import quantize
from pageant.scripts.bench.engine_process import EngineProcess, exit_when_asked
from pageant.scripts.bench.models import checkpoint
from pageant.scripts.bench.peers.environments import HOME
from pageant.scripts.bench.workloads import workload
from pageant.scripts.report import in_turns, machine_speed, publish, table

FILE, FILE_AS_IT_IS, OWN = "file", "file as it is", "own"
OURS_MIN = 0.97
VLLM_MIN = 1.25
WORKLOAD = "single"


class Row(NamedTuple):
    """A checkpoint's scheme, and the word for our own weights of as many bits."""

    scheme: str
    own: str
    group_size: int | None

    def __str__(self) -> str:
        return self.scheme if self.group_size is None else f"{self.scheme}:{self.group_size}"


ROWS = {
    str(row): row for row in (Row("w4a16", "int4", 128), Row("w4a16", "int4", 32), Row("w8a8", "int8", None))
}


def measure(row: Row, model: Path, runs: int, beside: list[str], home: Path) -> dict[str, Any]:
    """Return tokens a second of each engine, and what the file's are to our own weights' and to the peers'."""
    with tempfile.TemporaryDirectory(prefix="pageant-speed-") as place, ExitStack() as stack:
        file = quantize(model, Path(place) / "file", row.scheme, group_size=row.group_size).path
        engines: dict[str, EngineProcess] = {}

        def start(name: str, engine: str, folder: Path, **options: Any) -> None:
            engines[name] = stack.enter_context(
                EngineProcess(engine, folder, [WORKLOAD], home=home, **options)
            )

        start(FILE, "pageant", file, settings={"head_quantization": row.own})
        start(OWN, "pageant", model, quantization=row.own)
        if beside:
            start(FILE_AS_IT_IS, "pageant", file)
        for peer in beside:
            start(peer, peer, file)
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for turn in range(runs + 1):
            for name in in_turns(list(engines), turn):
                took = engines[name].run(WORKLOAD)
                if turn:  # the first round warms up
                    seconds[name].append(took)
    tokens = workload(WORKLOAD).requests * workload(WORKLOAD).output_tokens
    rates = {name: tokens / statistics.median(some) for name, some in seconds.items()}
    ratios = {OWN: rates[FILE] / rates[OWN]} | {peer: rates[FILE_AS_IT_IS] / rates[peer] for peer in beside}
    return {
        "scheme": row.scheme,
        "group_size": row.group_size,
        "own": row.own,
        "tokens_per_second": rates,
        "file_to": ratios,
        "seconds": seconds,
    }


def holds(figures: dict[str, Any]) -> bool:
    """Tell whether a row is above the bars."""
    ratios = figures["file_to"]
    return all(ratio >= (OURS_MIN if name == OWN else VLLM_MIN) for name, ratio in ratios.items())


def main() -> int:
    """Measure, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--beside", default="", help="peers, such as vllm")
    parser.add_argument("--rows", default=",".join(ROWS), help="schemes, with group sizes")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--home", type=Path, default=HOME, help="of the peers' environments")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    exit_when_asked()
    model = options.model or checkpoint("qwen3-0.6b-layers")
    beside = [name for name in options.beside.split(",") if name]
    names = options.rows.split(",")
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"--rows is {unknown[0]!r}; expected some of {', '.join(ROWS)}")
    rows = [measure(ROWS[name], model, options.runs, beside, options.home) for name in names]
    lines = table(
        ["scheme", "group", "tokens/s", "to our own", *(f"to {name}" for name in beside)],
        [
            [
                row["scheme"],
                row["group_size"] or "row",
                f"{row['tokens_per_second'][FILE]:.1f}",
                f"{row['file_to'][OWN]:.3f} of {row['own']}",
                *(f"{row['file_to'][name]:.2f}" for name in beside),
            ]
            for row in rows
        ],
    )
    publish({"machine_speed": machine_speed(), "model": model.name, "rows": rows}, lines, options.json)
    return int(not all(map(holds, rows)))


if __name__ == "__main__":
    sys.exit(main())
