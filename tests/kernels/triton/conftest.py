"""The Triton kernels beside the reference: on a GPU where there is one, else in Triton's interpreter.

Triton decides when it is first imported whether it interprets, and in a run of the whole suite transformers may
have imported it by then. So where this process does not interpret, `test_interpreter` starts one that does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pageant.kernels.base import Kernels
from pageant.kernels.reference import ReferenceKernels

ON_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# The interpreter's products of bfloat16 are wrong.
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * ON_GPU

if INTERPRETED:
    np.seterr(all="ignore")  # infinities are as harmless there as on a GPU

collect_ignore = []
if ON_GPU or INTERPRETED:
    collect_ignore += ["test_interpreter.py", "test_compiled.py"]
else:
    of_both = {"test_interpreter.py", "test_compiled.py"}
    collect_ignore += [
        file.name for file in Path(__file__).parent.glob("test_*.py") if file.name not in of_both
    ]


@pytest.fixture(scope="session")
def triton_kernels() -> Kernels:
    from pageant.kernels.triton import TritonKernels

    return TritonKernels()


@pytest.fixture(scope="session")
def reference() -> Kernels:
    return ReferenceKernels()


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if ON_GPU else "cpu")


@pytest.fixture(scope="session")
def numbers(device: torch.device) -> Callable[..., torch.Tensor]:
    """Normal numbers of a shape, cut from rows that are `spare` wider."""

    def make(*shape: int, dtype: torch.dtype, seed: int, spare: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        width = torch.Size(shape[1:]).numel()
        whole = torch.randn(shape[0], width + spare, generator=generator).to(dtype)
        return whole.to(device)[:, :width].view(shape)

    return make


@pytest.fixture(scope="session")
def assert_near() -> Callable[..., None]:
    """Equal up to a rounding or two of the dtype."""

    def check(found: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
        assert found.dtype == expected.dtype and found.shape == expected.shape
        step = {torch.float32: 2e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[found.dtype]
        torch.testing.assert_close(found, expected, atol=step * scale, rtol=step)

    return check
