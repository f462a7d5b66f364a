"""Functions on tensors that the executor computes with. Knows no model.

A backend is chosen once, at start, with `load`. `reference` is plain torch, and the oracle of the faster ones'
tests; its contract is `pageant.kernels.base.Kernels`. `cpu` is C++, compiled on first use; `triton` is for
GPUs.

Importing this package loads no torch: only `load` and the submodules do.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pageant.kernels.base import Kernels

__all__ = ["BACKENDS", "load", "why_not_triton"]

BACKENDS = ("reference", "cpu", "triton")

log = logging.getLogger("pageant.kernels")


def load(backend: str = "auto", device: str = "cpu", *, deterministic: bool = False) -> Kernels:
    """Return the kernels of a backend, ready to run on `device` ("cpu", "cuda", "cuda:1", ...).

    With `deterministic`, which only `cpu` offers, a row's bits are the same whatever else is in its step.
    `auto` is the fastest backend that runs on this device. Where the C++ of `cpu` cannot be compiled, or
    `triton` cannot be loaded, that is the reference, and a warning is logged once.

    Raises:
        ValueError: `backend` is unknown (the message names the known ones), not for this device, or not
            deterministic.
        pageant.kernels.cpu.BuildError: `backend` is `cpu` and cannot be compiled.
        ImportError: `backend` is `triton` and that is not installed.
    """
    if deterministic and (backend not in ("auto", "cpu") or device != "cpu"):
        raise ValueError(
            f"the kernel backend {backend!r} is not deterministic on {device!r}: expected 'cpu' on 'cpu'"
        )
    if backend == "auto" and not deterministic:
        return _fastest(device)
    if backend == "reference":
        from pageant.kernels.reference import ReferenceKernels

        return ReferenceKernels()
    if backend in ("auto", "cpu"):
        if device != "cpu":
            raise ValueError(f"the kernel backend 'cpu' does not run on {device!r}: expected 'auto' there")
        from pageant.kernels.cpu import CpuKernels

        return CpuKernels(deterministic=deterministic)
    if backend == "triton":
        if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError("the kernel backend 'triton' does not run on 'cpu': expected 'auto' there")
        from pageant.kernels.triton import TritonKernels

        return TritonKernels()
    known = ", ".join(repr(known) for known in ("auto", *BACKENDS))
    raise ValueError(f"unknown kernel backend {backend!r}: expected one of {known}")


def _fastest(device: str) -> Kernels:
    """Return the fastest backend for a device; the reference runs on every device."""
    if device != "cpu":
        reason = why_not_triton(device)
        if reason is None:
            return load("triton", device)
        _warn(reason)
        return load("reference", device)
    from pageant.kernels.cpu import BuildError

    try:
        return load("cpu")
    except BuildError as error:
        _warn(str(error))
        return load("reference")


def why_not_triton(device: str) -> str | None:
    """Return, in words, what keeps the `triton` backend from running on a GPU, or None."""
    try:
        import torch

        importlib.import_module("pageant.kernels.triton")
    except ImportError as error:
        return f"{error} (pip install pageant[gpu])"
    if torch.version.cuda is None:
        return "this torch is not built for CUDA"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"the device's compute capability is {major}.{minor}, and 8.0 is needed"
    # Triton compiles a small launcher in C for each kernel.
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "no C compiler was found: set CC, or install gcc or clang"
    return None


@functools.cache
def _warn(reason: str) -> None:
    """Warn once for each reason."""
    log.warning("the slower reference kernels are used: %s", reason)
