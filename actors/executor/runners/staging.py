"""A step's arrays on their way to the device: side by side in pinned memory, and there in one copy.

Copies from ordinary memory wait for the device; a copy for each array would be a dozen launches of some
microseconds. The host's buffers are used in turn, and one is written to again only when its last copy has
been made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Staging", "packed_bytes"]

_ALIGNMENT = 16  # what kernels are compiled for is whether an address is a multiple of this
_TURNS = 9  # three sends a step, of which the last waits on the device; a step is launched while one runs
_DTYPES = {
    np.dtype(name): dtype
    for name, dtype in (("int64", torch.int64), ("int32", torch.int32), ("float32", torch.float32))
}


def _places(arrays: Sequence[npt.NDArray[Any]]) -> tuple[list[int], int]:
    """Return where each array begins, and how many bytes all take."""
    places, end = [], 0
    for array in arrays:
        places.append(end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return places, end


def packed_bytes(arrays: Sequence[npt.NDArray[Any]]) -> int:
    """Return how many bytes `Staging.send` needs for arrays, [...] of any dtype."""
    return _places(arrays)[1]


class _Buffer:
    """Host memory, pinned where there is a GPU, and when it was last copied from."""

    def __init__(self, pin: bool) -> None:
        self._pin = pin
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self.copied = torch.cuda.Event() if pin else None  # type: ignore[no-untyped-call]

    def take(self, size: int) -> Tensor:
        if self.copied is not None:
            self.copied.synchronize()
        if len(self._bytes) < size:
            self._bytes = torch.empty(2 * size, dtype=torch.uint8, pin_memory=self._pin)
        return self._bytes[:size]


class Staging:
    """Staging memory for one device, used from one thread at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = [_Buffer(device.type == "cuda") for _ in range(_TURNS)]
        self._turn = 0

    def send(self, arrays: Sequence[npt.NDArray[Any]], into: Tensor | None = None) -> list[Tensor]:
        """Return arrays, [...] of any dtype, on the device, in the order of the current stream.

        They are views of `into` (uint8, of at least `packed_bytes` bytes), which earlier sends of the same
        shapes laid out the same way; without it, of new memory.
        """
        places, size = _places(arrays)
        buffer = self._buffers[self._turn]
        self._turn = (self._turn + 1) % _TURNS
        host = buffer.take(size)
        packed = host.numpy()
        for place, array in zip(places, arrays, strict=True):
            packed[place : place + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
        whole = torch.empty(size, dtype=torch.uint8, device=self._device) if into is None else into[:size]
        whole.copy_(host, non_blocking=True)
        if buffer.copied is not None:
            buffer.copied.record()
        return [
            whole[place : place + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
            for place, array in zip(places, arrays, strict=True)
        ]
