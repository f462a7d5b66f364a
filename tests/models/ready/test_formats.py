"""Every maker's checkpoint computes what the maker's own dequantised weights do, whatever shape it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from pageant.kernels.quantized import QuantizedWeight, dequantize
from pageant.models import Checkpoint
from pageant.models.ready.filling import dequantised

EXACT, ROUNDED, REQUANTISED = 1e-4, 5e-3, 1e-2


class Case(NamedTuple):
    """The largest error of logits, the bits of a layer's fused weights, and the line that loading logs."""

    error_max: float
    bits: set[int | None]
    said: str


_ROUNDED = "exact codes and scales rounded to bfloat16"
CASES = {
    "gptq": Case(ROUNDED, {4}, f"8 matrices with {_ROUNDED} in 4.5 bits a weight"),
    "gptq_v2": Case(ROUNDED, {4}, f"8 matrices with {_ROUNDED} in 4.5 bits a weight"),
    "gptq_asym": Case(ROUNDED, {5}, f"8 matrices with {_ROUNDED} in 5.5 bits a weight"),
    "gptq_act": Case(ROUNDED, {4}, f"8 matrices with {_ROUNDED} in 4.5 bits a weight"),
    "gptq_act_asym": Case(ROUNDED, {5}, f"8 matrices with {_ROUNDED} in 5.5 bits a weight"),
    "gptq8": Case(ROUNDED, {8}, f"8 matrices with {_ROUNDED} in 8.5 bits a weight"),
    "gptq_dynamic": Case(
        ROUNDED, {8, 4, None}, f"6 matrices with {_ROUNDED} in 4.5 bits a weight; 1 matrices"
    ),
    "gptq_moe": Case(ROUNDED, {4}, f"8 matrices with {_ROUNDED} in 4.5 bits a weight"),
    "awq": Case(EXACT, {5}, "4 matrices exact in 5.5 bits a weight"),
    "bnb_nf4": Case(REQUANTISED, {8}, "8 matrices requantised in 8.5 bits a weight"),
    "bnb_nested": Case(REQUANTISED, {8}, "8 matrices requantised in 8.5 bits a weight"),
    "bnb_fp4": Case(REQUANTISED, {8}, "8 matrices requantised in 8.5 bits a weight"),
    "bnb_int8": Case(ROUNDED, {8}, f"8 matrices with {_ROUNDED} in 8.5 bits a weight"),
    "ct_w4a16": Case(EXACT, {4}, "8 matrices exact in 4.5 bits a weight"),
    "ct_w4a16_asym": Case(EXACT, {5}, "8 matrices exact in 5.5 bits a weight"),
    "ct_w8a16": Case(EXACT, {8}, "8 matrices exact in 8.5 bits a weight"),
    "ct_w8a8": Case(EXACT, {8}, "8 matrices exact in 8.5 bits a weight"),
    "ct_fp8": Case(REQUANTISED, {8}, "8 matrices requantised in 8.5 bits a weight"),
    "ct_fp8_dynamic": Case(REQUANTISED, {8}, "8 matrices requantised in 8.5 bits a weight"),
    "ct_fp8_block": Case(REQUANTISED, {8}, "8 matrices requantised in 8.5 bits a weight"),
    "ct_mxfp4": Case(EXACT, {5}, "8 matrices exact in 5.5 bits a weight"),
    "ct_excluded": Case(
        EXACT, {4, None}, "6 matrices exact in 4.5 bits a weight; 1 matrices dequantised in the model's"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_makers_dequantised_weights(
    made: Callable[[str], Any], logits_of: Callable[..., Any], name: str
) -> None:
    checkpoint, case = made(name), CASES[name]
    expected = torch.from_numpy(checkpoint.expected["logits"])
    decoder = checkpoint.load()
    errors = logits_of(decoder, checkpoint.expected["ids"]) - expected
    assert expected.square().mean().sqrt() > 0.4, "logits that are all but zero would be near to anything"
    assert errors.square().mean().sqrt() < case.error_max
    assert case.error_max > EXACT or errors.abs().max() < EXACT
    bits = {
        weight.bits if isinstance(weight, QuantizedWeight) else None
        for weights in decoder._layer_weights
        for name, weight in weights.items()
        if name in ("qkv.weight", "o.weight", "gate_up.weight", "down.weight")
    }
    assert bits == case.bits
    assert case.said in Checkpoint(checkpoint.path).ready.description


@pytest.mark.parametrize("name", CASES)
def test_a_module_dequantises_as_its_maker_does(made: Callable[[str], Any], name: str) -> None:
    """Bit for bit, but for makers who multiply in half precision."""
    checkpoint = made(name)
    weight = str(checkpoint.expected["name"])
    module = Checkpoint(checkpoint.path).ready.modules[weight]
    prefix = weight.removesuffix("weight")
    parts = {
        name.removeprefix(prefix): tensor
        for name, tensor in checkpoint.tensors.items()
        if name.startswith(prefix)
    }
    found, expected = dequantised(module, parts), torch.from_numpy(checkpoint.expected["weight"])
    if name.startswith("ct"):
        assert torch.equal(found.bfloat16(), expected.bfloat16())
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_compiled_kernels_compute_the_same(
    made: Callable[[str], Any], logits_of: Callable[..., Any], name: str
) -> None:
    checkpoint = made(name)
    expected = logits_of(checkpoint.load(), checkpoint.expected["ids"])
    found = logits_of(checkpoint.load("cpu"), checkpoint.expected["ids"])
    # Backends may requantise to other codes, of the same error.
    error_max = 2e-2 if CASES[name].error_max == REQUANTISED else 1e-4
    torch.testing.assert_close(found, expected, atol=error_max, rtol=0)
    if CASES[name].error_max == REQUANTISED:
        return
    tiled, plain = checkpoint.load("cpu", "bfloat16"), checkpoint.load()
    for ours, theirs in zip(tiled._layer_weights, plain._layer_weights, strict=True):
        for name, weight in ours.items():
            if isinstance(weight, QuantizedWeight):
                assert torch.equal(dequantize(weight, torch.float32), dequantize(theirs[name], torch.float32))
