"""The backend as a whole."""

from __future__ import annotations

from pageant.kernels.base import Kernels
from pageant.kernels.logit_functions import LogitKernels

# Gathers, what is done while loading, and what is seldom done: torch is as good. And what is put together from others.
SHARED = {
    "embed",
    "embed_share",
    "gather_columns",
    "quantize",
    "multiply_heads",
    "rope_and_write_latents",
    "route_by_sigmoid",
    "route_in_groups",
    "name",
    "move_slots",
    "add_low_rank",
    "gated_linear",
    "act_and_mul",
}


def test_every_kernel_is_this_backends_own(triton_kernels: Kernels, reference: Kernels) -> None:
    assert isinstance(triton_kernels, Kernels)
    offered = {name for name in vars(Kernels) | vars(LogitKernels) if not name.startswith("_")} - SHARED
    assert {
        name
        for name in offered
        if getattr(triton_kernels, name).__module__.startswith("pageant.kernels.triton.")
    } == offered
