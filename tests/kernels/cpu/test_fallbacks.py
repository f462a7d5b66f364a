"""Calls that the CPU backend leaves to the reference are logged once and counted."""

from __future__ import annotations

import logging

import torch

from pageant.kernels.base import Kernels
from pageant.kernels.cpu import CpuKernels
from pageant.kernels.recording import RecordingKernels
from pageant.kernels.reference import ReferenceKernels


def test_the_backend_is_composed_without_the_oracle():
    kernels = CpuKernels()
    assert isinstance(kernels, Kernels) and isinstance(kernels, RecordingKernels)
    assert not isinstance(kernels, ReferenceKernels)
    assert not isinstance(ReferenceKernels(), RecordingKernels)


def test_what_the_reference_computes_is_counted_and_logged_once(caplog):
    kernels = CpuKernels()
    x, weight = torch.randn(3, 8), torch.randn(8)
    assert torch.isfinite(kernels.rms_norm(x, weight, 1e-6)).all()
    assert not kernels.fallbacks, "the library has float32"
    caplog.set_level(logging.INFO, "pageant.kernels")
    for _ in range(2):
        found = kernels.rms_norm(x.double(), weight.double(), 1e-6)
    torch.testing.assert_close(found, ReferenceKernels().rms_norm(x.double(), weight.double(), 1e-6))
    assert kernels.fallbacks == {"rms_norm": 2}
    assert [record.message for record in caplog.records] == [
        "the reference computes some calls of rms_norm, which is slower"
    ]
