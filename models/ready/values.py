"""Checks of the small tensors of quantised modules, from memory-mapped files. Knows no torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pageant.models.ready.module import wrong_part
from pageant.models.tensor_files import TensorInfo, read_values

__all__ = ["check_scales", "read_groups"]

_AT_A_TIME = 1 << 22  # numbers
# By dtype: unsigned integers of the same size, and the least and the largest that are finite numbers above zero.
_POSITIVE: dict[str, tuple[str, int, int]] = {
    "F32": ("<u4", 1, 0x7F7FFFFF),
    "F16": ("<u2", 1, 0x7BFF),
    "BF16": ("<u2", 1, 0x7F7F),
    "F8_E8M0": ("u1", 0, 254),
    "U8": ("u1", 0, 254),  # exponents too, where a format keeps them in bytes
}


def check_scales(info: TensorInfo, zero: bool = False) -> None:
    """Raise CheckpointError unless all numbers of a tensor are finite and above zero, or `zero` where that may be."""
    kind, least, most = _POSITIVE[info.dtype]
    bits = read_values(info).reshape(-1).view(kind)
    least = 0 if zero else least
    for start in range(0, len(bits), _AT_A_TIME):
        some = bits[start : start + _AT_A_TIME]
        wrong = (some < least) | (some > most)
        if wrong.any():
            first = start + int(wrong.argmax())
            place = ", ".join(str(index) for index in np.unravel_index(first, info.shape or (1,)))
            found = f"{_number(int(bits[first]), info.dtype)} at [{place}]"
            raise wrong_part(info, found, f"scales that are finite and {'not below' if zero else 'above'} 0")


def read_groups(info: TensorInfo, size: int) -> npt.NDArray[np.int64] | None:
    """Return the group of each input, int64 [inputs]; None where groups of this size follow one another.

    Raises CheckpointError for a group that there is not, and where one has no inputs.
    """
    groups = np.asarray(read_values(info)).astype(np.int64)
    count = len(groups) // size
    if groups.min() < 0 or groups.max() >= count:
        wrong = int(groups[(groups < 0) | (groups >= count)][0])
        raise wrong_part(info, f"the group {wrong}", f"groups from 0 to {count - 1}")
    used = len(np.unique(groups))
    if used != count:
        raise wrong_part(info, f"inputs of {used} groups", f"inputs of all {count} groups")
    return None if np.array_equal(groups, np.arange(len(groups)) // size) else groups


def _number(bits: int, dtype: str) -> str:
    """A number as it is read, for a message."""
    if dtype == "BF16":
        return f"{np.array([bits << 16], np.uint32).view(np.float32)[0]:g}"
    if dtype in ("F8_E8M0", "U8"):
        return "NaN (exponent 255)"
    kind = np.float32 if dtype == "F32" else np.float16
    return f"{np.array([bits], np.uint32 if dtype == 'F32' else np.uint16).view(kind)[0]:g}"
