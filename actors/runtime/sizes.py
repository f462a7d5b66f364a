"""Sizes in bytes, as options give them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_bytes(size: str | int) -> int:
    """Convert a size such as `"4GiB"` to bytes.

    Raises:
        ValueError: it is not a number with one of the known units.
    """
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    if match is None or match[2] not in _UNITS:
        units = ", ".join(unit for unit in _UNITS if unit)
        raise ValueError(f"found {size!r}; expected a number of bytes, or one with a unit of {units}")
    return int(float(match[1]) * _UNITS[match[2]])
