"""The contract of kernels that are compiled while they are used, and can be compiled beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch

from pageant.kernels.base import Kernels

__all__ = ["PreparedKernels"]


@runtime_checkable
class PreparedKernels(Kernels, Protocol):
    """Kernels whose variants take seconds to compile."""

    def num_loaded(self) -> int:
        """Return how many variants this process has loaded."""
        ...

    def is_loading(self) -> bool:
        """Tell whether a variant is being compiled or read now; any thread may ask."""
        ...

    def warn_of_loads(self) -> None:
        """Log a warning from now on for each variant that is loaded: a request waits for it."""
        ...

    def precompile(self, compute: Callable[[], None], device: torch.device) -> None:
        """Compile all that `compute` launches, by processes side by side, where that has not been done before.

        `compute` is called, and runs nothing on the device.
        """
        ...
