"""The backend as a whole."""

from __future__ import annotations

from pageant.kernels.base import Kernels

SHARED = {"embed", "quantize", "name"}  # gathers, and what is done while loading: torch is as good


def test_every_kernel_is_this_backends_own(triton_kernels: Kernels, reference: Kernels) -> None:
    assert isinstance(triton_kernels, Kernels)
    offered = {name for name in vars(Kernels) if not name.startswith("_")} - SHARED
    assert {
        name
        for name in offered
        if getattr(triton_kernels, name).__module__.startswith("pageant.kernels.triton.")
    } == offered
