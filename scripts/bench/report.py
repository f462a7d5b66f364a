"""What every benchmark says about where and when it ran."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pageant.actors.runtime.version import VERSION


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
    """What bounds every engine here, with all cores: bytes read from memory and bfloat16 products, per second."""
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
