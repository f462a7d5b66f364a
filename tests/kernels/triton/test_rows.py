"""Norms and activations beside the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pageant.kernels.base import Kernels

Numbers = Callable[..., torch.Tensor]


@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (3, 100), (70, 16), (2, 3000), (5, 3, 24)])
def test_norms(
    triton_kernels: Kernels,
    reference: Kernels,
    numbers: Numbers,
    assert_near: Callable[..., None],
    dtype: torch.dtype,
    shape: tuple[int, ...],
) -> None:
    x = numbers(*shape, dtype=dtype, seed=1, spare=3)
    weight, bias = numbers(2, shape[-1], dtype=dtype, seed=2)
    residual = numbers(*shape, dtype=dtype, seed=3, spare=5)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("rms_norm", (x, weight, 1e-6)),
        ("wide_rms_norm", (x, weight.float(), 1e-2)),
    ]
    if shape[-1] > 4:  # the difference of few numbers from their mean has few good bits left
        calls.append(("layer_norm", (x, weight, bias, 1e-5)))
    if len(shape) == 2:
        calls += [
            ("add_rms_norm", (x, residual, weight, 1e-2)),
            ("add_wide_rms_norm", (x, residual, weight.float(), 1e-6)),
            ("add_layer_norm", (x, residual, weight, bias, 1e-2)),
        ][: 2 + (shape[-1] > 4)]
    for name, arguments in calls:
        found = getattr(triton_kernels, name)(*arguments)
        expected = getattr(reference, name)(*arguments)
        if isinstance(found, torch.Tensor):
            found, expected = (found,), (expected,)
        for ours, theirs in zip(found, expected, strict=True):
            assert_near(ours, theirs, 8)


def test_an_rms_norm_rounds_before_its_weight_and_a_wide_one_after(
    triton_kernels: Kernels, reference: Kernels, numbers: Numbers
) -> None:
    """Rounding at the other place would change the last bit of a quarter of the numbers."""
    x, weight = numbers(8, 256, dtype=torch.float16, seed=1), numbers(1, 256, dtype=torch.float16, seed=2)[0]
    for name, given in (("rms_norm", weight), ("wide_rms_norm", weight.float())):
        found = getattr(triton_kernels, name)(x, given, 1e-6)
        same = found == getattr(reference, name)(x, given, 1e-6)
        assert float(same.float().mean()) > 0.99


@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (3, 100), (2, 1500)])
def test_activations(
    triton_kernels: Kernels,
    reference: Kernels,
    numbers: Numbers,
    assert_near: Callable[..., None],
    dtype: torch.dtype,
    rows: int,
    size: int,
) -> None:
    x = numbers(rows, 2 * size, dtype=dtype, seed=1, spare=3) * 4
    assert_near(triton_kernels.silu_and_mul(x), reference.silu_and_mul(x), 16)
    assert_near(triton_kernels.clamped_swiglu(x), reference.clamped_swiglu(x), 16)
    for tanh in (False, True):
        assert_near(triton_kernels.gelu(x, tanh), reference.gelu(x, tanh), 4)
        assert_near(triton_kernels.gelu_and_mul(x, tanh), reference.gelu_and_mul(x, tanh), 16)


def test_activations_hold_at_the_ends_of_the_range(
    triton_kernels: Kernels, reference: Kernels, device: torch.device
) -> None:
    x = torch.tensor([[-1e30, -200.0, -88.0, 0.0, 88.0, 200.0, 1e30]], device=device)
    for tanh in (False, True):
        torch.testing.assert_close(triton_kernels.gelu(x, tanh), reference.gelu(x, tanh))
    gated = torch.cat((x, torch.ones_like(x)), dim=1)
    torch.testing.assert_close(triton_kernels.silu_and_mul(gated), reference.silu_and_mul(gated))
