"""The C++ kernels beside the reference."""

from __future__ import annotations

import pytest

from pageant.kernels.cpu import CpuKernels
from pageant.kernels.cpu.levels import LEVELS, best_level
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
    if LEVELS.index(request.param) < LEVELS.index(best_level()):
        pytest.skip(f"this processor has no {request.param}")
    return CpuKernels(request.param)
