"""The C++ kernels beside the reference."""

from __future__ import annotations

import pytest

from pageant.kernels.cpu import CpuKernels
from pageant.kernels.cpu.levels import LEVELS, levels_here
from pageant.kernels.reference import ReferenceKernels


@pytest.fixture(scope="session")
def cpu() -> CpuKernels:
    return CpuKernels()


@pytest.fixture(scope="session")
def deterministic() -> CpuKernels:
    return CpuKernels(deterministic=True)


@pytest.fixture(scope="session")
def reference() -> ReferenceKernels:
    return ReferenceKernels()


@pytest.fixture(scope="session", params=LEVELS)
def leveled(request: pytest.FixtureRequest) -> CpuKernels:
    """The kernels as each instruction set that runs here has them."""
    if request.param not in levels_here():
        pytest.skip(f"this processor has no {request.param}")
    return CpuKernels(request.param)
