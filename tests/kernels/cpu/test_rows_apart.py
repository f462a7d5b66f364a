"""Results that will be multiplied have a line between rows, where products by tiles read many rows at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pageant.kernels.cpu import CpuKernels
from pageant.kernels.memory import Pages
from pageant.kernels.quantized import empty_quantized
from pageant.kernels.tiled import empty_tiled

BF16 = torch.bfloat16


def attention(kernels: CpuKernels, x: Tensor, make_batch: Callable[..., Any]) -> Tensor:
    rows, size = x.shape
    batch = make_batch([(rows, rows)], 16, 40, torch.Generator().manual_seed(0))
    cache = torch.randn(40, 1, 16, 64).to(x.dtype)
    return kernels.paged_attention(x.view(rows, size // 64, 64), cache, cache, batch, 0.1).flatten(1)


def gated(kernels: CpuKernels, x: Tensor, quantized: bool) -> Tensor:
    shape = 2 * x.shape[1], x.shape[1]
    if quantized:
        weight = empty_quantized(shape, 8, "cpu", in_tiles=True)
        kernels.quantize(torch.randn(shape), weight)
        return kernels.gated_linear(x, weight, None, "silu")
    tiled = empty_tiled(shape, x.dtype, Pages("cpu"))
    tiled.fill(torch.randn(shape))
    return kernels.gated_linear(x, tiled, None, "silu")


RESULTS: dict[str, Callable[[CpuKernels, Tensor, Callable[..., Any]], Tensor]] = {
    "rms_norm": lambda kernels, x, _: kernels.rms_norm(x, x[0].clone(), 1e-6),
    "layer_norm": lambda kernels, x, _: kernels.layer_norm(x, x[0].clone(), x[0].clone(), 1e-6),
    "add_rms_norm": lambda kernels, x, _: kernels.add_rms_norm(x, x, x[0].clone(), 1e-6)[0],
    "attention": attention,
    "silu_and_mul": lambda kernels, x, _: kernels.silu_and_mul(torch.cat((x, x), dim=1)),
    "gelu": lambda kernels, x, _: kernels.gelu(x, tanh=False),
    "gated": lambda kernels, x, _: gated(kernels, x, quantized=False),
    "gated, quantised": lambda kernels, x, _: gated(kernels, x, quantized=True),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_rows_are_an_odd_number_of_lines_apart_where_tiles_read_them(
    leveled: CpuKernels, make_batch: Callable[..., Any], name: str, dtype: torch.dtype
) -> None:
    for rows, size in ((16, 128), (17, 128), (100, 128), (100, 192)):
        found = RESULTS[name](leveled, torch.randn(rows, size).to(dtype), make_batch)
        by_tiles = dtype in leveled.unit_dtypes and rows > 16
        expected = (size // 32 | 1) * 32 if by_tiles else size
        assert found.shape == (rows, size) and found.stride() == (expected, 1), (rows, size)
