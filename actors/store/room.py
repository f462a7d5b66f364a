"""Memory of this host that a store can have."""

from __future__ import annotations

import os
from pathlib import Path

from pageant.protocol.errors import ConfigurationError

MARGIN_BYTES = 1 << 28
"""Memory that a store leaves to others."""


def check_room(wanted: int) -> None:
    """Refuse memory that this host does not have.

    Raises:
        ConfigurationError: says what was asked for and what there is.
    """
    free = free_bytes()
    most = None if free is None else max(0, free - MARGIN_BYTES)
    if most is not None and wanted > most:
        raise ConfigurationError(
            f"the store's memory is {wanted / 2**30:.2f} GiB; expected at most {most / 2**30:.2f} GiB: this host has "
            f"{(free or 0) / 2**30:.2f} GiB of memory free{_shm()}"
        )


def _shm() -> str:
    """Return the size of /dev/shm, for a message; "" if there is none."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return ""
    return f", and /dev/shm {found.f_bavail * found.f_frsize / 2**30:.2f} GiB"


def free_bytes() -> int | None:
    """Return the memory that can be had without swapping, in the process's control group too; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    group = Path("/sys/fs/cgroup")
    try:
        most, used = (group / "memory.max").read_text(), (group / "memory.current").read_text()
        if most.strip().isdecimal():
            found.append(max(0, int(most) - int(used)))
    except OSError:
        pass  # no control groups, or of another version
    return min(found, default=None)
