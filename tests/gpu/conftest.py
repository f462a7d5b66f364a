"""Tests that only a GPU can run. (Kernels beside the reference are in tests/kernels/triton, which runs there too.)"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pageant

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="no CUDA device is here"))


@pytest.fixture(scope="session")
def demo() -> Path:
    return Path(pageant.__file__).parent / "models" / "demo"


@pytest.fixture(params=[torch.bfloat16, torch.float16, torch.float32], ids=["bfloat16", "float16", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param
