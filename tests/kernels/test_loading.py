"""Choosing a backend."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pageant import kernels
from pageant.kernels.base import Kernels


@pytest.mark.parametrize("name", ["auto", "reference", "cpu"])
def test_a_known_backend_has_every_kernel(name: str) -> None:
    backend = kernels.load(name)
    assert isinstance(backend, Kernels)
    assert backend.name in kernels.BACKENDS


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"unknown kernel backend 'tritn': expected one of 'auto', 'reference'"
    ):
        kernels.load("tritn")


@pytest.mark.parametrize(("name", "device"), [("triton", "cpu"), ("cpu", "cuda")])
def test_a_backend_is_refused_for_a_device_that_it_does_not_run_on(name: str, device: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' does not run on '{device}': expected 'auto'"):
        kernels.load(name, device)


def test_deterministic_is_for_the_backend_that_knows_how() -> None:
    assert kernels.load("auto", deterministic=True).name == "cpu"
    for name, device in (("reference", "cpu"), ("triton", "cpu"), ("auto", "cuda")):
        with pytest.raises(ValueError, match=f"'{name}' is not deterministic on '{device}': expected 'cpu'"):
            kernels.load(name, device, deterministic=True)


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for CUDA")
def test_without_cuda_auto_takes_the_reference_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    kernels._warn.cache_clear()
    for _ in range(2):
        assert kernels.load("auto", "cuda").name == "reference"
    assert [record.message for record in caplog.records] == [
        "the slower reference kernels are used: this torch is not built for CUDA"
    ]


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, pageant.kernels; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
