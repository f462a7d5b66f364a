"""Every type of tensors stands for the numbers that the `gguf` package reads, and is kept as the line says."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from pageant.kernels.quantized import QuantizedWeight, dequantize
from pageant.models import CheckpointError
from pageant.models.gguf.types import FLOATS, READABLE, TYPES
from pageant.models.ready.blocks import CODES, WEIGHTS
from pageant.models.ready.filling import dequantised
from pageant.models.ready.gguf import METHOD

ROUNDED = "with exact codes and scales rounded to bfloat16"
KEPT = {
    "Q8_0": (8, f"{ROUNDED} in 8.5 bits a weight"),
    "Q4_0": (4, f"{ROUNDED} in 4.5 bits a weight"),
    "Q5_0": (5, f"{ROUNDED} in 5.5 bits a weight"),
    "MXFP4": (5, "exact in 5.5 bits a weight"),
    "Q4_1": (8, "requantised in 8.5 bits a weight"),
    "Q5_1": (8, "requantised in 8.5 bits a weight"),
}
"""Types that the `gguf` package can make in blocks of 32: bits in memory, and what is said."""


def blocks_of(name: str, count: int, seed: int = 0) -> np.ndarray:
    """Return random blocks, uint8 [3, count * bytes of a block], all of whose scales are finite."""
    kind = next(kind for kind in TYPES.values() if kind.name == name)
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (3 * count * 20, kind.num_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        finite = np.isfinite(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])).all(axis=1)
    return blocks[finite][: 3 * count].reshape(3, -1)


def test_sizes_are_those_of_the_gguf_package() -> None:
    theirs = {int(kind): gguf.GGML_QUANT_SIZES[kind] for kind in gguf.GGMLQuantizationType}
    assert {number: (kind.numbers, kind.num_bytes) for number, kind in TYPES.items()} == theirs
    assert {number: kind.name for number, kind in TYPES.items()} == {
        int(kind): kind.name for kind in gguf.GGMLQuantizationType
    }


@pytest.mark.parametrize("name", [name for name in READABLE if name not in FLOATS])
def test_blocks_stand_for_the_same_numbers_bit_for_bit(name: str) -> None:
    raw = blocks_of(name, count=5)
    expected = torch.from_numpy(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]))
    blocks = torch.from_numpy(raw).view(3, 5, -1)
    if name in CODES:
        codes, scales = CODES[name](blocks)
        assert codes.dtype == torch.int8
        found = (codes.view(3, -1, 32).float() * scales[..., None]).view(3, -1)
    else:
        found = WEIGHTS[name](blocks)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_weights_are_kept_as_is_said(
    written: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str, family: str
) -> None:
    """A llama's rows change places, and a mixture's come from stacks."""
    monkeypatch.setattr(METHOD, "dequantised_numbers_max", 0)
    file, (bits, said) = written(family, name), KEPT[name]
    decoder, ready = file.load(), file.checkpoint().ready
    assert said in ready.description and ready.description.startswith(f"GGUF ({name}): ")
    assert ready.description.count("matrices") == 1
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(file.path).tensors}
    down = "blk.1.ffn_down.weight" if family == "llama" else "blk.1.ffn_down_exps.weight"
    theirs = gguf.quants.dequantize(reader[down].data, reader[down].tensor_type)
    ours = decoder._layer_weights[1]["down.weight" if family == "llama" else "expert_down.weight"]
    assert isinstance(ours, QuantizedWeight) and ours.bits == bits
    expected = torch.from_numpy(theirs)
    found = dequantize(ours, torch.float32)
    error = (found - expected).norm() / expected.norm()
    assert error == 0 if name == "MXFP4" else error < 6e-3


def test_a_module_dequantises_as_the_gguf_package_has_it(written: Callable[..., Any]) -> None:
    from pageant.models.gguf.mapping import map_tensor

    file = written("qwen2", "Q5_1")
    ready = file.checkpoint().ready
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(file.path).tensors}
    for weight, module in ready.modules.items():
        theirs = gguf.quants.dequantize(reader[weight].data, reader[weight].tensor_type)
        parts = {role: map_tensor(info) for role, info in module.parts.items()}
        assert torch.equal(dequantised(module, parts), torch.from_numpy(theirs))


def test_small_models_are_dequantised_where_their_types_do_not_fit(written: Callable[..., Any]) -> None:
    file = written("llama", {"attn": "Q4_1", "ffn": "Q4_0"})
    decoder, ready = file.load(), file.checkpoint().ready
    weights = decoder._layer_weights[2]
    assert weights["qkv.weight"].dtype == torch.float32 and weights["gate_up.weight"].bits == 4
    assert "6 matrices dequantised in the model's dtype" in ready.description
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(file.path).tensors}
    value = reader["blk.2.attn_v.weight"]
    theirs = torch.from_numpy(gguf.quants.dequantize(value.data, value.tensor_type))
    assert torch.equal(weights["qkv.weight"][-len(theirs) :], theirs)


@pytest.mark.parametrize(
    ("name", "error_max"), [("Q8_0", 5e-3), ("Q4_0", 5e-3), ("MXFP4", 1e-4), ("Q4_1", 1e-2)]
)
def test_logits_are_those_of_the_dequantised_model(
    written: Callable[..., Any], pages: Any, monkeypatch: pytest.MonkeyPatch, name: str, error_max: float
) -> None:
    """Queries and keys of a llama are sorted back, whether codes are kept or made anew."""
    monkeypatch.setattr(METHOD, "dequantised_numbers_max", 0)
    file = written("llama_mild", name)
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(file.path).tensors}
    dense = written("llama_mild", "F32")
    model = copy.deepcopy(dense.model)
    with torch.no_grad():
        for weight, place in dense.checkpoint().decoder()[1].items():
            tensor = reader[weight]
            if tensor.tensor_type.name != name:
                continue
            values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
            if place.paired_heads is not None:
                values = (
                    values.view(place.paired_heads, -1, 2, values.shape[1])
                    .transpose(1, 2)
                    .reshape(values.shape)
                )
            theirs = dict(model.named_parameters())
            theirs[_of_transformers(weight)].copy_(values)
        ids = [5, 9, 7, 11, 30, 2, 8, 17, 90]
        expected = model(torch.tensor([ids])).logits[0]
        found = pages(file.load()).step({"a": ids})["a"]
    assert expected.square().mean().sqrt() > 0.3, "logits that are all but zero would be near to anything"
    assert (found - expected).square().mean().sqrt() < error_max


def _of_transformers(name: str) -> str:
    renamed = {
        **{"token_embd": "model.embed_tokens", "blk.": "model.layers."},
        **{"attn_q.": "self_attn.q_proj.", "attn_k.": "self_attn.k_proj.", "attn_v.": "self_attn.v_proj."},
        **{"attn_output.": "self_attn.o_proj.", "ffn_gate.": "mlp.gate_proj.", "ffn_up.": "mlp.up_proj."},
        "ffn_down.": "mlp.down_proj.",
    }
    if name == "output.weight":
        return "lm_head.weight"
    for theirs, ours in renamed.items():
        name = name.replace(theirs, ours)
    return name


@pytest.mark.parametrize(("kind", "dtype"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16")])
def test_files_of_floats_are_not_quantised_and_may_be_quantised_here(
    written: Callable[..., Any], kind: str, dtype: str
) -> None:
    file = written("qwen2", kind)
    checkpoint = file.checkpoint()
    assert checkpoint.ready is None and checkpoint.dtype == dtype
    made = file.load(quantization="int8")
    assert made._layer_weights[0]["down.weight"].bits == 8


def test_types_of_one_fused_weight_may_differ(
    written: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers keep values in more bits than queries and keys: the widest holds all of them."""
    monkeypatch.setattr(METHOD, "dequantised_numbers_max", 0)
    kinds = {"attn_q.": "Q4_0", "attn_k.": "Q4_0", "attn_v.": "Q5_0", "ffn_gate.": "Q4_0", "ffn_up.": "Q4_1"}
    file = written("qwen3", {**kinds, "ffn_down": "Q8_0", "attn_output": "F16", "token_embd": "Q8_0"})
    decoder = file.load()
    bits = {
        name: weight.bits
        for name, weight in decoder._layer_weights[0].items()
        if isinstance(weight, QuantizedWeight)
    }
    assert bits == {"qkv.weight": 5, "gate_up.weight": 8, "down.weight": 8}
    assert decoder._layer_weights[0]["o.weight"].dtype == torch.float32
    assert decoder.embedding.bits == 8


def test_a_scale_that_is_no_number_is_found_while_it_is_read(written: Callable[..., Any]) -> None:
    file = written("qwen2", "Q8_0")
    tensor = next(t for t in gguf.GGUFReader(file.path).tensors if t.name == "blk.1.ffn_up.weight")
    with file.path.open("r+b") as content:
        content.seek(int(tensor.data_offset) + 34 * 7)
        content.write(np.float16("nan").tobytes())
    with pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up\.weight has a scale that is no finite number"):
        file.load()
