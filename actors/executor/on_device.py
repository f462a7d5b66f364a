"""Arrays of the host where the device can read them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["to_device"]


def to_device(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """Return an array, [...] of any dtype, where the device can read it. Does not wait for the copy."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
