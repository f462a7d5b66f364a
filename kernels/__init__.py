"""Functions on tensors: what the executor computes with. Knows no model.

Backends are chosen once, at start, with `load`. `reference` is plain torch, and the oracle that the
faster ones are tested against; its contract is `pageant.kernels.base.Kernels`.

Importing this package loads no torch: only `load` and the submodules do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pageant.kernels.base import Kernels

__all__ = ["BACKENDS", "load"]

BACKENDS = ("reference",)


def load(backend: str = "auto", device: str = "cpu") -> Kernels:
    """Return the kernels of a backend, ready to run on `device` ("cpu", "cuda", "cuda:1", ...).

    `auto` is the fastest backend that runs on this device here.
    Raises ValueError, naming the known backends, when `backend` is none of them.
    """
    name = _fastest(device) if backend == "auto" else backend
    if name == "reference":
        from pageant.kernels.reference import ReferenceKernels

        return ReferenceKernels()
    known = ", ".join(repr(known) for known in ("auto", *BACKENDS))
    raise ValueError(f"unknown kernel backend {backend!r}: expected one of {known}")


def _fastest(device: str) -> str:
    """The reference runs on every device, and is the only backend so far."""
    return "reference"
