"""Additions of adapters to products, by each backend of a CPU."""

from __future__ import annotations

import pytest
import torch

from pageant.kernels.base import Kernels
from pageant.kernels.low_rank import Addition, LowRank


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [0, 1, 3, 8, 29])
@pytest.mark.parametrize("some", [True, False])
def test_it_adds_to_its_own_rows_and_parts_alone(
    backend: Kernels, dtype: torch.dtype, rows: int, some: bool
) -> None:
    random = torch.Generator().manual_seed(rows)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(dtype)

    x, y = numbers(rows, 50)[:, :37], numbers(rows, 700)
    down, ups, starts = numbers(37, 24), (numbers(3, 600), numbers(17, 20)), (0, 640)
    tokens = torch.randperm(rows, generator=random)[: rows // 2] if some else torch.arange(rows)
    expected, column = y.double(), 0
    for up, start in zip(ups, starts, strict=True):
        low = x[tokens].double() @ down[:, column : column + len(up)].double()
        expected[tokens, start : start + up.shape[1]] += low @ up.double()
        column += len(up)
    backend.add_low_rank(x, y, [Addition(tokens if some else None, LowRank(down, ups, starts))])
    step = {torch.float32: 1e-5, torch.bfloat16: 2**-6, torch.float16: 2**-9}[dtype]
    torch.testing.assert_close(y.double(), expected, rtol=step, atol=step * 20)


def test_several_add_each_to_their_own_what_they_add_alone(backend: Kernels) -> None:
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn(21, size, generator=random) for size in (33, 530))
    tokens = torch.randperm(21, generator=random)[:18].split([1, 12, 5])
    additions = [
        Addition(
            some,
            LowRank(
                torch.randn(33, rank, generator=random), (torch.randn(rank, 500, generator=random),), (start,)
            ),
        )
        for some, rank, start in zip(tokens, (16, 3, 20), (0, 30, 7), strict=True)
    ]
    expected = y.clone()
    for addition in additions:
        backend.add_low_rank(x, expected, [addition])
    backend.add_low_rank(x, y, additions)
    assert torch.equal(y, expected)
