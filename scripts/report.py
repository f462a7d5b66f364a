"""Reports of benchmarks: where and when one ran, and what it found."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pageant.actors.runtime.version import VERSION

T = TypeVar("T")


def _writable(path: Path | None) -> Path | None:
    """Refuse a path that cannot be written, before any work."""
    if path is not None and path != Path("-"):
        place = path if path.exists() else path.absolute().parent
        if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
            raise typer.BadParameter(f"{path} cannot be written; expected a file in a folder that there is")
    return path


Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        callback=_writable,
        help="Write the figures there too; - prints them alone.",
    ),
]


def publish(figures: dict[str, Any], lines: Iterable[str], path: Path | None) -> None:
    """Prints a benchmark's lines, and writes its figures, with machine and date, as JSON if asked."""
    text = json.dumps({"machine": machine(), **figures}, indent=1)
    if path == Path("-"):
        print(text)
        return
    for line in lines:
        print(line)
    if path is not None:
        path.write_text(text + "\n")


def in_turns(some: Sequence[T], turn: int) -> Sequence[T]:
    """The same, and in every second turn from behind: whoever runs first has another machine than who runs last."""
    return some if turn % 2 == 0 else some[::-1]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines with aligned columns; the first is left-aligned."""
    cells = [list(map(str, row)) for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in cells
    ]


def machine() -> dict[str, Any]:
    """Processor, cores, versions and date."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "pageant": VERSION,
        "torch": importlib.metadata.version("torch"),
    }


def machine_speed(seconds: float = 1.0) -> dict[str, float]:
    """Measure the bounds of every engine here, with all cores: memory read and bfloat16 products, per second."""
    import torch

    values = torch.ones(1 << 28)  # 1 GiB, far beyond the caches
    left, right = (torch.randn(2048, 2048, dtype=torch.bfloat16) for _ in range(2))
    return {
        "memory_read_gb_per_second": round(values.nbytes / _quickest(values.sum, seconds) / 1e9, 1),
        "bfloat16_gflop_per_second": round(2 * 2048**3 / _quickest(lambda: left @ right, seconds) / 1e9),
    }


def _quickest(work: Callable[[], object], seconds: float) -> float:
    """The shortest of the calls that `seconds` have room for, and at least three."""
    began = time.perf_counter()
    took: list[float] = []
    while len(took) < 3 or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return min(took)
