"""Functions on tensors: what the executor computes with. Knows no model.

Backends are chosen once, at start, with `load`. `reference` is plain torch, and the oracle that the
faster ones are tested against; its contract is `pageant.kernels.base.Kernels`. `cpu` is C++, compiled on
first use.

Importing this package loads no torch: only `load` and the submodules do.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pageant.kernels.base import Kernels

__all__ = ["BACKENDS", "load"]

BACKENDS = ("reference", "cpu")

log = logging.getLogger("pageant.kernels")


def load(backend: str = "auto", device: str = "cpu") -> Kernels:
    """Return the kernels of a backend, ready to run on `device` ("cpu", "cuda", "cuda:1", ...).

    `auto` is the fastest backend that runs on this device here; where the C++ of `cpu` cannot be compiled,
    that is the reference, and a warning says so once.
    Raises ValueError, naming the known backends, when `backend` is none of them or not for this device, and
    `pageant.kernels.cpu.BuildError` when it is `cpu` and cannot be compiled.
    """
    if backend == "auto":
        return _fastest(device)
    if backend == "reference":
        from pageant.kernels.reference import ReferenceKernels

        return ReferenceKernels()
    if backend == "cpu":
        if device != "cpu":
            raise ValueError(f"the kernel backend 'cpu' does not run on {device!r}: expected 'auto' there")
        from pageant.kernels.cpu import CpuKernels

        return CpuKernels()
    known = ", ".join(repr(known) for known in ("auto", *BACKENDS))
    raise ValueError(f"unknown kernel backend {backend!r}: expected one of {known}")


def _fastest(device: str) -> Kernels:
    """The reference runs on every device."""
    if device != "cpu":
        return load("reference", device)
    from pageant.kernels.cpu import BuildError

    try:
        return load("cpu")
    except BuildError as error:
        _warn(str(error))
        return load("reference")


@functools.cache
def _warn(reason: str) -> None:
    """Warns once for each reason."""
    log.warning("the slower reference kernels are used: %s", reason)
