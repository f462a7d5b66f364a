"""Devices, as nodes report them and topologies ask for them. Knows no torch: a node reports before torch is
loaded.

    cuda:1      this device
    cuda        any device of that kind that no other actor of the topology has
    free        such a GPU, or the CPU where there is none

A CPU is always there, and may be shared.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

CPU = "cpu"
FREE = "free"
# Device files of hosts with a single GPU: Windows' own, and that of embedded boards.
SINGLE_GPU_FILES = ("dxg", "nvhost-gpu")
FORM = re.compile(r"free|cpu|cuda(:\d{1,2})?")


def local_devices(folder: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the devices of this host that this process may use, as torch numbers them."""
    files = [path for path in folder.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdecimal()]
    count = len(files)
    if (folder / "kfd").exists():  # AMD's, which torch calls by the same name
        count += len(list(folder.glob("dri/renderD*")))
    if not count and any((folder / name).exists() for name in SINGLE_GPU_FILES):
        count = 1
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        named = [one.strip() for one in visible.split(",") if one.strip()]
        count = min(count, named.index("-1") if "-1" in named else len(named))
    return (CPU, *(f"cuda:{index}" for index in range(count)))


def choose(wanted: str, there: Sequence[str], taken: Collection[str]) -> str | None:
    """Return the device, out of those in `there`, that `wanted` gets; None if there is none."""
    if wanted == CPU:
        return CPU
    gpus = [device for device in there if device != CPU and device not in taken]
    if ":" in wanted:
        return wanted if wanted in gpus else None
    if gpus:
        return gpus[0]
    return CPU if wanted == FREE else None
