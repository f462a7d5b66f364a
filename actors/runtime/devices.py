"""What can be computed on, as nodes report it and topologies ask for it. Knows no torch: a node says so before anything
that would is loaded.

    cuda:1      that one
    cuda        any of that kind that nobody else of the topology has
    free        such a GPU, or the CPU where there is none

A CPU is always there, and for everybody.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

CPU = "cpu"
FREE = "free"
ONE_ALONE = ("dxg", "nvhost-gpu")  # Windows' own device, and that of boards with one GPU
FORM = re.compile(r"free|cpu|cuda(:\d{1,2})?")


def local_devices(folder: Path = Path("/dev")) -> tuple[str, ...]:
    """Those of this host that this process may use, as torch numbers them."""
    files = [path for path in folder.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdecimal()]
    count = len(files)
    if (folder / "kfd").exists():  # AMD's, which torch calls by the same name
        count += len(list(folder.glob("dri/renderD*")))
    if not count and any((folder / name).exists() for name in ONE_ALONE):
        count = 1
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        named = [one.strip() for one in visible.split(",") if one.strip()]
        count = min(count, named.index("-1") if "-1" in named else len(named))
    return (CPU, *(f"cuda:{index}" for index in range(count)))


def choose(wanted: str, there: Sequence[str], taken: Collection[str]) -> str | None:
    """The device that `wanted` gets, of those that are there, or None."""
    if wanted == CPU:
        return CPU
    gpus = [device for device in there if device != CPU and device not in taken]
    if ":" in wanted:
        return wanted if wanted in gpus else None
    if gpus:
        return gpus[0]
    return CPU if wanted == FREE else None
