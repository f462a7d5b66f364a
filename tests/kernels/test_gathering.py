"""Columns in another order: of rows apart from one another, in every dtype and on every backend."""

from __future__ import annotations

import pytest
import torch

from pageant.kernels.base import Kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "columns"), [(0, 32), (1, 7), (5, 96), (300, 512)])
def test_columns_are_gathered_from_rows_that_lie_apart(
    backend: Kernels, dtype: torch.dtype, rows: int, columns: int
) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, columns + 32, generator=generator).to(dtype)[:, 16 : 16 + columns]
    order = torch.randperm(columns, generator=generator)
    found = backend.gather_columns(x, order)
    assert found.is_contiguous() and torch.equal(found, x[:, order])
