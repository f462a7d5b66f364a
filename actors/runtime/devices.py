"""Devices, as nodes report them and topologies ask for them. Knows no torch: a node reports before torch is
loaded.

    cuda:1      this device
    cuda        any device of that kind that no other actor of the topology has
    free        such a GPU, or the CPU where there is none
    cpu:0-3,8   these cores of the CPU

A CPU is always there, and may be shared, but no core of it by two actors that ask for cores.
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
_CORES = r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*"
FORM = re.compile(rf"free|cpu(:{_CORES})?|cuda(:\d{{1,2}})?")


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


def is_cpu(device: str) -> bool:
    """Tell whether a device is the CPU, or cores of it."""
    return device.partition(":")[0] == CPU


def cores_of(device: str) -> tuple[int, ...] | None:
    """Return the cores that a device names, in rising order; None where it names none.

    Raises ValueError for a range that falls, or a core that is named twice.
    """
    kind, _, listed = device.partition(":")
    if kind != CPU or not listed:
        return None
    cores: list[int] = []
    for part in listed.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise ValueError(f"{device!r} has the range {part}; expected {last}-{first}")
        cores.extend(range(int(first), int(last or first) + 1))
    if len(set(cores)) < len(cores):
        twice = next(core for core in cores if cores.count(core) > 1)
        raise ValueError(f"{device!r} names core {twice} twice; expected each core once")
    return tuple(sorted(cores))


def local_cores() -> tuple[int, ...]:
    """Return the cores of this host that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def missing_cores(device: str) -> str:
    """Return, in words, what keeps this process from the cores that a device names; "" if nothing does."""
    cores, here = cores_of(device), local_cores()
    if cores is None or set(cores) <= set(here):
        return ""
    missing = ", ".join(map(str, sorted(set(cores) - set(here))))
    return f"{device!r} names core {missing}; this process may use {', '.join(map(str, here))}"


def choose(wanted: str, there: Sequence[str], taken: Collection[str]) -> str | None:
    """Return the device, out of those in `there`, that `wanted` gets; None if there is none."""
    if is_cpu(wanted):
        return wanted
    gpus = [device for device in there if device != CPU and device not in taken]
    if ":" in wanted:
        return wanted if wanted in gpus else None
    if gpus:
        return gpus[0]
    return CPU if wanted == FREE else None
