"""Facts that the launch of a kernel needs."""

from __future__ import annotations

import functools

import torch

__all__ = ["cdiv", "interpreted", "next_power_of_2", "processors"]

_INTERPRETED_PROCESSORS = 1


def cdiv(number: int, size: int) -> int:
    """Return number / size, rounded up."""
    return -(-number // size)


def next_power_of_2(number: int) -> int:
    """Return the least power of two that is at least `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()


def interpreted(device: torch.device) -> bool:
    """Tell whether the kernels run in the interpreter: that is the only way they run on a CPU."""
    return device.type == "cpu"


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of the device's multiprocessors."""
    if interpreted(device):
        return _INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
