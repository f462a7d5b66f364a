"""Quantised modules in their places: adapters on them, shards, heads, and refusals by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from pageant import kernels
from pageant.kernels.base import AttentionBatch
from pageant.kernels.quantized import QuantizedWeight, dequantize
from pageant.kernels.tiled import TiledWeight
from pageant.models import Checkpoint, CheckpointError
from pageant.models.adapters.loading import Adapters
from pageant.models.loading import load_decoder
from pageant.models.placing import as_rows
from pageant.models.ready.filling import dequantised

Q_PROJ = "model.layers.0.self_attn.q_proj"
LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def dense_weights(checkpoint: Any) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors with its modules dequantised, in float32."""
    tensors = checkpoint.tensors
    ready = Checkpoint(checkpoint.path).ready
    dense = {name: tensor.float() for name, tensor in tensors.items() if name not in ready.parts}
    for weight, module in ready.modules.items():
        parts = {role: tensors[info.name] for role, info in module.parts.items()}
        dense[weight] = dequantised(module, parts)
    return dense


def with_exact_scales(checkpoint: Any) -> None:
    """Round float16 scales to numbers that bfloat16 has, so that nothing is rounded at load."""
    scales = {
        name: one.bfloat16().half() for name, one in checkpoint.tensors.items() if name.endswith(".scales")
    }
    checkpoint.edit(tensors=scales)


@pytest.mark.parametrize("name", ["gptq_act", "gptq_act_asym", "ct_w4a16", "gptq_dynamic"])
def test_an_adapter_on_quantised_weights_is_that_on_their_dequantised_ones(
    copied: Callable[[str], Any], save_adapter: Callable[..., Any], pages: Any, name: str
) -> None:
    """Sorted inputs are the weight's own affair: adapters take them as they come."""
    checkpoint = copied(name)
    with_exact_scales(checkpoint)
    config = AutoConfig.from_pretrained(checkpoint.path)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.load_state_dict(dense_weights(checkpoint), strict=False)
    adapter = save_adapter(model, LLAMA)
    decoder = checkpoint.load()
    adapters = Adapters({"a": str(adapter.path)}, Checkpoint(checkpoint.path), decoder)
    ids = [5, 9, 7, 11, 30, 2, 8, 17, 90]
    with torch.inference_mode():
        expected, plain = (one(torch.tensor([ids])).logits[0] for one in (adapter.merged, model))
    with adapters.applied([("a", None)]):
        found = pages(decoder).step({"a": ids})["a"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (plain - expected).abs().max() > 0.01, "the adapter is meant to matter"
    torch.testing.assert_close(pages(decoder).step({"a": ids})["a"], plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gptq_act", "ct_w4a16_asym", "bnb_nested"])
def test_parts_of_a_module_may_lie_in_different_shards(copied: Callable[[str], Any], name: str) -> None:
    checkpoint = copied(name)
    whole = checkpoint.load()
    tensors = checkpoint.tensors
    shard_of = {
        name: f"model-0000{1 + index % 3}-of-00003.safetensors" for index, name in enumerate(sorted(tensors))
    }
    for file in set(shard_of.values()):
        save_file({name: tensors[name] for name in tensors if shard_of[name] == file}, checkpoint.path / file)
    (checkpoint.path / "model.safetensors").unlink()
    index = checkpoint.path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shard_of}))
    for ours, theirs in zip(checkpoint.load().tensors(), whole.tensors(), strict=True):
        assert torch.equal(ours, theirs)
    (checkpoint.path / shard_of[max(tensors)]).unlink()
    assert "is not there; expected all shards beside it" in checkpoint.complaint()


@pytest.mark.parametrize(
    ("kinds", "bits"),
    [
        (("gptq", "gptq", "gptq8"), 8),
        (("gptq", "gptq8", "gptq"), 8),
        (("gptq", "dense", "gptq"), None),
    ],
)
def test_fused_rows_of_several_schemes_are_as_wide_as_the_widest(
    copied: Callable[[str], Any], made: Callable[[str], Any], kinds: tuple[str, ...], bits: int | None
) -> None:
    """Queries, keys and values, each of another checkpoint, by rules of `dynamic`."""
    checkpoint, others = copied("gptq_v2"), {"gptq8": made("gptq8")}
    changes: dict[str, Any] = {}
    rules: dict[str, Any] = {}
    for role, kind in zip(("q", "k", "v"), kinds, strict=True):
        module = f"model.layers.0.self_attn.{role}_proj"
        if kind == "gptq":
            continue
        changes |= {
            name: None for name in checkpoint.tensors if name.startswith(module) and "bias" not in name
        }
        if kind == "dense":
            rules[f"-:{module.replace('.', '[.]')}"] = {}
            changes[f"{module}.weight"] = torch.ones(32, 64)
        else:
            rules[module] = {"bits": 8, "group_size": -1}
            changes |= {name: one for name, one in others[kind].tensors.items() if name.startswith(module)}
            changes[f"{module}.qzeros"] = torch.full_like(changes[f"{module}.qzeros"], -0x7F7F7F80)
    (checkpoint.path / "quantize_config.json").unlink()
    checkpoint.edit({"dynamic": rules, "checkpoint_format": "gptq_v2"}, changes)
    with_exact_scales(checkpoint)
    fused = checkpoint.load()._layer_weights[0]["qkv.weight"]
    dense = dense_weights(checkpoint)
    expected = torch.cat([dense[f"model.layers.0.self_attn.{role}_proj.weight"] for role in "qkv"])
    if bits is None:
        assert torch.equal(fused, expected)
    else:
        assert isinstance(fused, QuantizedWeight) and fused.bits == bits
        assert torch.equal(dequantize(fused, torch.float32), expected)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "phi3", "gemma2", "qwen2_moe", "mixtral", "starcoder2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_family_has_its_modules_where_they_belong(
    family: Callable[[str], Any], tmp_path: Path, packed_gptq: Callable[..., Any], name: str, dtype: str
) -> None:
    """Also where dense weights are saved as [in, out], or with heads' queries, keys and values in turn."""
    base = family(name)
    checkpoint = Checkpoint(base.path)
    names, places = {info.name: one for one, info in checkpoint.tensors.items()}, checkpoint.decoder()[1]
    saved: dict[str, torch.Tensor] = {}
    for own, tensor in load_file(base.path / "model.safetensors").items():
        place = places.get(names[own])
        matrix = tensor.T if place is not None and place.transposed else tensor
        fits = (
            tensor.dim() == 2 and place is not None and place.layer is not None and matrix.shape[1] % 32 == 0
        )
        if fits and matrix.shape[0] % 8 == 0:
            parts = packed_gptq(matrix)
            parts["scales"] = parts["scales"].bfloat16()
            saved |= {f"{own.removesuffix('.weight')}.{role}": part for role, part in parts.items()}
        else:
            saved[own] = tensor.contiguous()
    save_file(saved, tmp_path / "model.safetensors")
    config = json.loads((base.path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    quantised = Checkpoint(tmp_path)
    decoder: Any = load_decoder(quantised, dtype, kernels=kernels.load())
    num_kept = 0
    for weight, module in quantised.ready.modules.items():
        place = places[weight]
        parts = {role: saved[info.name] for role, info in module.parts.items()}
        expected, room = as_rows(dequantised(module, parts), place), decoder.weight(place)
        if isinstance(room, QuantizedWeight):
            assert torch.equal(dequantize(room, torch.float32), expected), weight
            num_kept += 1
        else:  # a part of its fused weight is dense, or it is a router
            plain = room.plain() if isinstance(room, TiledWeight) else room.T if place.transposed else room
            assert torch.equal(plain.float(), expected.to(plain.dtype).float()), weight
    assert num_kept > 0


def test_a_quantised_head_is_kept_too(
    copied: Callable[[str], Any],
    made: Callable[[str], Any],
    logits_of: Callable[..., Any],
    packed_gptq: Callable[..., Any],
) -> None:
    """And with sorted inputs it is requantised: a head's inputs are not gathered."""
    checkpoint = copied("gptq_asym")
    (checkpoint.path / "quantize_config.json").unlink()
    checkpoint.edit({"lm_head": True, "sym": True, "dynamic": {r"-:.*layers": {}}})
    head = checkpoint.tensors["lm_head.weight"]
    dense = {name: one.bfloat16() for name, one in dense_weights(made("gptq_asym")).items()}
    keep = (
        {name: None for name in checkpoint.tensors if ".layers." in name} | dense | {"lm_head.weight": None}
    )
    for order, bits in ((None, 4), (np.random.default_rng(0), 8)):
        parts = {f"lm_head.{role}": part for role, part in packed_gptq(head, order).items()}
        checkpoint.edit(tensors=keep | parts)
        with_exact_scales(checkpoint)
        decoder = checkpoint.load()
        assert decoder.head.bits == bits
        expected = dense_weights(checkpoint)["lm_head.weight"]
        found = dequantize(decoder.head, torch.float32)
        assert (found - expected).norm() / expected.norm() < (1e-6 if bits == 4 else 0.01)
        assert logits_of(decoder, range(3, 20)).isfinite().all()
    ready = Checkpoint(checkpoint.path)
    ready.refuse_head_quantization(None)
    with pytest.raises(
        CheckpointError, match="head_quantization int8 for a head that GPTQ quantised; expected no"
    ):
        load_decoder(ready, kernels=kernels.load(), head_quantization="int8")


@pytest.mark.parametrize("name", ["gptq", "ct_w8a16"])
@pytest.mark.parametrize(("quantization", "bits"), [("int8", 8), ("int4", 5)])
def test_a_dense_head_may_be_quantised_beside_quantised_layers(
    made: Callable[[str], Any], logits_of: Callable[..., Any], name: str, quantization: Any, bits: int
) -> None:
    checkpoint = Checkpoint(made(name).path)
    plain, found = (
        load_decoder(checkpoint, "float32", kernels=kernels.load("reference"), head_quantization=head)
        for head in (None, quantization)
    )
    assert found.head.bits == bits and found._weights["embedding.weight"].bits == bits
    for ours, theirs in zip(found._layer_weights, plain._layer_weights, strict=True):
        assert all(getattr(ours[key], "bits", None) == getattr(theirs[key], "bits", None) for key in theirs)
    expected, logits = logits_of(plain, range(3, 20)), logits_of(found, range(3, 20))
    assert 0 < (logits - expected).norm() / expected.norm() < {8: 0.02, 5: 0.15}[bits]


def test_parts_that_are_sorted_differently_are_requantised(copied: Callable[[str], Any]) -> None:
    checkpoint = copied("gptq_act")
    name = "model.layers.0.self_attn.k_proj.g_idx"
    checkpoint.edit(tensors={name: checkpoint.tensors[name].flip(0)})
    form = Checkpoint(checkpoint.path).ready.forms[0, "qkv.weight"]
    assert (form.bits, form.fidelity, form.order) == (8, "requantised", None)
    decoder, dense = checkpoint.load(), dense_weights(checkpoint)
    expected = torch.cat([dense[f"model.layers.0.self_attn.{role}_proj.weight"] for role in "qkv"])
    found = dequantize(decoder._layer_weights[0]["qkv.weight"], torch.float32)
    assert (found - expected).norm() / expected.norm() < 0.01
    assert "qkv.order" not in decoder._layer_weights[0] and "o.order" in decoder._layer_weights[0]


@pytest.mark.parametrize("name", ["gptq_act", "ct_w4a16_asym", "gptq_moe"])
@torch.inference_mode()
def test_a_step_is_recorded_with_sorted_inputs_too(made: Callable[[str], Any], name: str) -> None:
    decoder = made(name).load("cpu")
    if not hasattr(decoder.kernels, "capture"):
        pytest.skip("there is no compiler")
    caches, tokens = decoder.allocate_kv_caches(4, 4), torch.tensor([5, 9, 7])
    batch = AttentionBatch(
        query_starts=torch.tensor([0, 3], dtype=torch.int32),
        context_lengths=torch.tensor([3], dtype=torch.int32),
        block_tables=torch.tensor([[2, 0]], dtype=torch.int32),
        slots=torch.tensor([8, 9, 10]),
        positions=torch.arange(3),
        max_query_length=3,
        max_context_length=3,
    )

    def step() -> Any:
        return decoder.forward(tokens, batch.positions, batch, caches)

    again, expected = decoder.kernels.capture(step), step()
    assert torch.equal(again(), expected)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_quantised_checkpoint_is_not_quantised_once_more(
    made: Callable[[str], Any], quantization: Any
) -> None:
    checkpoint = Checkpoint(made("ct_w4a16").path)
    found = (
        f"quantization {quantization} for weights that compressed-tensors quantised; expected no quantization"
    )
    with pytest.raises(CheckpointError, match=found):
        load_decoder(checkpoint, kernels=kernels.load(), quantization=quantization)


def test_loading_says_in_one_line_what_was_exact(made: Callable[[str], Any], caplog: Any) -> None:
    with caplog.at_level("INFO", logger="pageant.models"):
        made("ct_excluded").load()
    (said,) = [record.getMessage() for record in caplog.records if "bits a weight" in record.getMessage()]
    assert said.startswith("ct_excluded: compressed-tensors: 6 matrices exact in 4.5 bits a weight; ")


def test_a_model_that_transformers_runs_is_refused(family: Callable[[str], Any], tmp_path: Path) -> None:
    config = json.loads((family("opt").path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match="weights that GPTQ quantised, for a model that transformers runs"
    ):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "method",
    ["torchao", "quip", "aqlm", "hqq", "eetq", "vptq", "spqr", "higgs", "quark", "fp_quant", "sparse", None],
)
def test_other_formats_are_refused_by_name(copied: Callable[[str], Any], method: str | None) -> None:
    checkpoint = copied("ct_w4a16")
    checkpoint.edit({"quant_method": method})
    assert (
        f"quantization_config with the method {method!r}; expected one of gptq, awq, "
        in checkpoint.complaint()
    )
