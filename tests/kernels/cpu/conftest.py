"""The C++ kernels beside the reference."""

from __future__ import annotations

import pytest

from pageant.kernels.cpu import CpuKernels
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
