"""What every benchmark says about where and when it ran."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

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
