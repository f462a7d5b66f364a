"""Weights of 8 and 4 bits: how near they are, how they lie, and that products take them for what they stand for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pageant.kernels.base import Kernels
from pageant.kernels.quantized import Bits, QuantizedWeight, dequantize, empty_quantized, quantize
from pageant.kernels.reference import ReferenceKernels

BITS: list[Bits] = [8, 5, 4]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
DISTRIBUTIONS = ["normal", "outliers", "heavy tails", "uniform", "mostly zeros", "tiny"]


def quantized(backend: Kernels, weight: Tensor, bits: Bits, in_halves: bool = False) -> QuantizedWeight:
    made = empty_quantized(tuple(weight.shape), bits, "cpu", in_tiles=in_halves, in_halves=in_halves)
    for one, into in ((weight, made),) if weight.dim() == 2 else zip(weight, made, strict=True):
        backend.quantize(one, into)
    return made


def round_to_nearest(weight: Tensor, bits: int) -> Tensor:
    """The plain way: each group by its largest size, in float32."""
    groups = weight.float().view(weight.shape[0], -1, 32)
    scales = groups.abs().amax(2, keepdim=True).clamp(min=1e-30) / (2 ** (bits - 1) - 1)
    return ((groups / scales).round() * scales).view(weight.shape)


def distribution(name: str) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(96, 256, generator=generator) * 0.03
    if name == "outliers":
        weight[:, 7::64] *= 30
    if name == "heavy tails":
        weight = weight**3 * 1e3
    if name == "uniform":
        weight = torch.rand(96, 256, generator=generator) - 0.5
    if name == "mostly zeros":
        weight[weight.abs() < 0.05] = 0
        weight[:9] = 0
    if name == "tiny":
        weight *= 1e-6
    return weight


@pytest.mark.parametrize(("bits", "in_halves"), [(8, False), (8, True), (5, False), (4, False)])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_error_of_a_matrix_is_at_most_that_of_rounding_to_nearest(
    backend: Kernels, bits: Bits, in_halves: bool, name: str, dtype: torch.dtype
) -> None:
    weight = distribution(name).to(dtype)
    found = dequantize(quantized(backend, weight, bits, in_halves), torch.float32)
    error, plain = ((w - weight.float()).norm() for w in (found, round_to_nearest(weight, bits)))
    assert plain > 0
    assert error <= plain
    if bits == 4 and name == "normal":
        assert error < 0.86 * plain, "a better scale is meant to be searched for"


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [32, 64, 96, 33, 7])
def test_what_can_be_said_in_so_many_bits_is_kept(
    backend: Kernels, bits: Bits, dtype: torch.dtype, inputs: int
) -> None:
    limit = 2 ** (bits - 1)
    weight = torch.randint(1 - limit, limit, (5, inputs), generator=torch.Generator().manual_seed(0)).to(
        dtype
    )
    weight[:, ::32] = -limit
    made = quantized(backend, weight / 32, bits)
    assert torch.equal(dequantize(made, dtype), weight / 32)
    assert torch.equal(backend.linear(torch.eye(inputs, dtype=dtype), made), (weight / 32).T)


@pytest.mark.parametrize("bits", BITS)
def test_parts_are_views_of_the_whole(backend: Kernels, bits: Bits) -> None:
    weight = torch.randn(3, 40, 96)
    whole = dequantize(quantized(backend, weight, bits), torch.float32)
    made = empty_quantized((3, 40, 96), bits, "cpu")
    for expert in range(3):
        backend.quantize(weight[expert, :16], made[expert][:16])
        backend.quantize(weight[expert, 16:], made[expert][16:])
    assert torch.equal(dequantize(made, torch.float32), whole)
    assert made[1].shape == (40, 96) and made[1][3:9].shape == (6, 96)
    assert torch.equal(dequantize(made[2][torch.tensor([5, 1])], torch.float32), whole[2][[5, 1]])
    assert made.nbytes == 3 * 40 * (128 * bits // 8 + 4 * 2)


@pytest.mark.parametrize("bits", BITS)
def test_a_transposed_weight_is_quantised_as_its_copy_is(backend: Kernels, bits: Bits) -> None:
    weight = torch.randn(96, 40)
    found, expected = quantized(backend, weight.T, bits), quantized(backend, weight.T.contiguous(), bits)
    assert torch.equal(found.values, expected.values) and torch.equal(found.scales, expected.scales)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_take_a_weight_for_what_it_stands_for(
    backend: Kernels, bits: Bits, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(70, 100).to(dtype), torch.randn(70).to(dtype)
    made = quantized(backend, weight, bits)
    plain = dequantize(made, dtype)
    x = torch.randn(9, 120).to(dtype)[:, :100]
    # x may be rounded to 8 bits, each 32 numbers by their largest: some 0.05 each of these results.
    within = {torch.float32: (1e-4, 1e-5), torch.float16: (0.4, 0.01), torch.bfloat16: (0.4, 0.01)}[dtype]
    tolerance = dict(zip(("atol", "rtol"), within, strict=True))
    torch.testing.assert_close(backend.linear(x, made, bias), F.linear(x, plain, bias), **tolerance)
    exact = (x.double() @ plain.double().T).float()
    for head in (made, plain):
        close = tolerance if dtype != torch.float32 and head is made else {"atol": 1e-4, "rtol": 1e-4}
        torch.testing.assert_close(backend.logits(x, head), exact, **close, msg="logits are not rounded")
    ids = torch.tensor([3, 69, 3, 0])
    assert torch.equal(backend.embed(ids, made, dtype), plain[ids])
    assert torch.equal(backend.embed(ids, plain, dtype), plain[ids])


@pytest.mark.parametrize("bits", BITS)
def test_experts_may_be_quantised(backend: Kernels, bits: Bits) -> None:
    generator = torch.Generator().manual_seed(0)
    gate_up, down = torch.randn(4, 48, 32, generator=generator), torch.randn(4, 32, 24, generator=generator)
    x = torch.randn(7, 32, generator=generator)
    weights, experts = backend.route(torch.randn(7, 4, generator=generator), 2, True)
    made = quantized(backend, gate_up, bits), quantized(backend, down, bits)
    plain = (dequantize(one, torch.float32) for one in made)
    found = backend.moe(x, *made, weights, experts, "silu")
    torch.testing.assert_close(found, backend.moe(x, *plain, weights, experts, "silu"), atol=1e-4, rtol=1e-4)


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of another device: on a GPU each is a copy that waits, or an error."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        devices = {
            leaf.device.type for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)
        }
        assert devices == {self.device}, func
        self.operations += 1
        return result


@pytest.mark.parametrize("bits", BITS)
def test_all_of_it_is_done_on_the_weights_own_device(bits: Bits) -> None:
    """Compute on the device, as must be where a CUDA graph is captured. (`meta` is a device that is not the host's.)"""
    weight = torch.empty(50, 100, device="meta")
    room = empty_quantized((50, 100), bits, "meta")
    token_ids = torch.empty(7, dtype=torch.int64, device="meta")
    with OneDevice("meta") as mode:
        quantize(weight, room)
        dequantize(room, torch.bfloat16)
        embedded = ReferenceKernels().embed(token_ids, room, torch.bfloat16)
    assert embedded.shape == (7, 100) and mode.operations > 20
