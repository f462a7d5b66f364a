"""The CPU backend: C++ kernels for float32, bfloat16 and float16, compiled on first use.

Each method has the contract of `pageant.kernels.base.Kernels`. Cases that the C++ lacks (other dtypes, `rope`
without a cache) fall back to the reference, which is logged once and counted (`fallbacks`). The step of a small
model consists mostly of these wrappers, so that they are as short as possible: no checks, hardly a view, and one
allocation for a result. (`new_empty` with sizes one by one takes half the time of `torch.empty` with a tuple.)

Row invariance: a row's bits depend neither on what else is in the step nor on how its prompt was chunked, where
all is computed here. That holds in bfloat16 with AVX2, and in float32 with AVX-512, where it costs nothing.
Below these levels, `linear` of many rows is torch's, which is faster there. With AMX, a quantised product of
many rows rounds x otherwise than one of few rows. `deterministic=True` does without either.
"""

from __future__ import annotations

from pageant.kernels.cpu.attention import AttentionKernels
from pageant.kernels.cpu.build import BuildError
from pageant.kernels.cpu.narrowing import NarrowingKernels
from pageant.kernels.cpu.recurrent import RecurrentKernels
from pageant.kernels.cpu.sampling import SamplingKernels
from pageant.kernels.cpu.screening import ScreeningKernels
from pageant.kernels.cpu.weights import WeightKernels

__all__ = ["BuildError", "CpuKernels"]


class CpuKernels(
    AttentionKernels, RecurrentKernels, WeightKernels, SamplingKernels, NarrowingKernels, ScreeningKernels
):
    """The `Kernels` of a CPU, composed of parts; the docstrings there are the contract.

    Raises BuildError where the library can be neither found nor compiled.
    """

    name = "cpu"
