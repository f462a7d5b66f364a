"""Choosing a backend."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pageant import kernels
from pageant.kernels.base import Kernels


@pytest.mark.parametrize("name", ["auto", *kernels.BACKENDS])
def test_a_known_backend_has_every_kernel(name: str) -> None:
    backend = kernels.load(name)
    assert isinstance(backend, Kernels)
    assert backend.name in kernels.BACKENDS


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"unknown kernel backend 'tritn': expected one of 'auto', 'reference'"
    ):
        kernels.load("tritn")


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, pageant.kernels; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
