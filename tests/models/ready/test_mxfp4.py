"""gpt-oss's experts in MXFP4, made here of random codes; transformers dequantises them, and computes with that."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from pageant import kernels
from pageant.kernels.collectives.local import local_group
from pageant.kernels.quantized import QuantizedWeight, dequantize
from pageant.models import Checkpoint, CheckpointError
from pageant.models.loading import load_decoder
from pageant.models.native import NativeDecoder
from pageant.models.sharding import Shard
from tests.kernels.collectives.groups import in_threads

HIDDEN, INNER, EXPERTS, LAYERS = 96, 128, 4, 2
IDS = torch.randint(3, 128, (40,), generator=torch.Generator().manual_seed(2)).tolist()
STACKS = {"gate_up_proj": (2 * INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
KEPT = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
FIRST = "model.layers.0.mlp.experts"


def stack_of(layer: int, module: str) -> str:
    return f"model.layers.{layer}.mlp.experts.{module}"


@pytest.fixture(scope="module")
def model() -> GptOssForCausalLM:
    torch.manual_seed(4)
    config = GptOssConfig(
        vocab_size=128,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=8,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    made = GptOssForCausalLM(config).eval()
    for name, parameter in made.named_parameters():
        if name.endswith("bias") or "sinks" in name:
            parameter.data.normal_(std=0.5)
    return made


@pytest.fixture(scope="module")
def parts() -> dict[str, Tensor]:
    """All experts' blocks and scales. Exponents are of small numbers."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for layer in range(LAYERS):
        for module, (rows, columns) in STACKS.items():
            shape = (EXPERTS, rows, columns // 32)
            blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(119, 125, shape, generator=generator, dtype=torch.uint8)
            found[f"{stack_of(layer, module)}_blocks"] = blocks
            found[f"{stack_of(layer, module)}_scales"] = scales
    return found


@pytest.fixture(scope="module")
def folder(
    model: GptOssForCausalLM, parts: Mapping[str, Tensor], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The checkpoint. The model gets the weights that it stands for."""
    path = tmp_path_factory.mktemp("mxfp4")
    tensors, stacks = model.state_dict(), {name.rpartition("_")[0] for name in parts}
    for name in stacks:
        tensors[name].copy_(dense_of(parts, name))
    model.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": KEPT}
    (path / "config.json").write_text(json.dumps(config))
    kept = {name: tensor for name, tensor in tensors.items() if name not in stacks}
    save_file(kept | parts, path / "model.safetensors")
    return path


def dense_of(parts: Mapping[str, Tensor], stack: str) -> Tensor:
    """What transformers makes of a stack: float32 [experts, inputs, outputs]."""
    # It works in place, on copies of what it is given.
    blocks, scales = parts[f"{stack}_blocks"].clone(), parts[f"{stack}_scales"].clone()
    dense: Tensor = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return dense


def loaded(path: Path, backend: str = "reference", shard: Shard | None = None) -> NativeDecoder:
    decoder = load_decoder(Checkpoint(path), "float32", kernels=kernels.load(backend), shard=shard)
    assert isinstance(decoder, NativeDecoder)
    return decoder


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_experts_are_kept_in_5_bits_and_are_those_of_transformers_bit_for_bit(
    folder: Path, parts: Mapping[str, Tensor], backend: str
) -> None:
    decoder = loaded(folder, backend)
    for layer, weights in enumerate(decoder._layer_weights):
        gate_up, down = weights["expert_gate_up.weight"], weights["expert_down.weight"]
        assert isinstance(gate_up, QuantizedWeight) and isinstance(down, QuantizedWeight)
        assert gate_up.bits == down.bits == 5
        columns = dense_of(parts, stack_of(layer, "gate_up_proj")).transpose(1, 2)
        expected = torch.cat((columns[:, ::2], columns[:, 1::2]), dim=1)
        assert torch.equal(dequantize(gate_up, torch.float32), expected)
        expected = dense_of(parts, stack_of(layer, "down_proj")).transpose(1, 2)
        assert torch.equal(dequantize(down, torch.float32), expected)
        assert isinstance(weights["qkv.weight"], Tensor)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_logits_are_those_of_the_dequantised_model(
    folder: Path, model: GptOssForCausalLM, pages: Any, backend: str
) -> None:
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
    run = pages(loaded(folder, backend))
    chunks = (IDS[:7], IDS[7:8], IDS[8:39], IDS[39:])
    logits = torch.cat([run.step({"a": chunk})["a"] for chunk in chunks])
    assert expected.square().mean().sqrt() > 0.4, "logits that are all but zero would be near to anything"
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("segments", [None, 4])
def test_two_ranks_compute_what_one_does(
    folder: Path, model: GptOssForCausalLM, pages: Any, segments: int | None
) -> None:
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
    decoders = [loaded(folder, shard=Shard(rank, 2, segments)) for rank in range(2)]
    for decoder, collectives in zip(decoders, local_group(2), strict=True):
        decoder.join(collectives)
    found = in_threads([lambda one=one: pages(one).step({"a": IDS})["a"] for one in decoders])[0]
    assert isinstance(found, Tensor), found
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_a_check_says_what_is_kept_and_how(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    checkpoint.check()
    assert checkpoint.ready is not None
    assert checkpoint.ready.description == "MXFP4: 4 matrices exact in 5.5 bits a weight"


def broken(
    folder: Path, target: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor | None]
) -> str:
    """Write a copy with keys of quantization_config and tensors changed (None: removed); return the complaint."""
    whole = json.loads((folder / "config.json").read_text())
    section = whole.pop("quantization_config") | config
    if section["quant_method"] is not None:
        whole["quantization_config"] = section
    (target / "config.json").write_text(json.dumps(whole))
    saved = load_file(folder / "model.safetensors") | tensors
    kept = {name: tensor.contiguous() for name, tensor in saved.items() if tensor is not None}
    save_file(kept, target / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        Checkpoint(target).check()
    return str(error.value)


def test_parts_that_make_no_sense_are_refused_by_name(
    folder: Path, parts: Mapping[str, Tensor], tmp_path: Path
) -> None:
    def complaint(part: str, tensor: Tensor | None, **config: Any) -> str:
        return broken(folder, tmp_path, config, {f"{FIRST}.{part}": tensor})

    blocks, scales = parts[f"{FIRST}.down_proj_blocks"], parts[f"{FIRST}.down_proj_scales"]
    assert f"no {FIRST}.0.down_proj.scales beside" in complaint("down_proj_scales", None)
    found = complaint("down_proj_scales", scales[:, :, :2])
    assert f"{FIRST}.down_proj_scales[0] has shape [96, 2]; expected [96, 4]" in found
    found = complaint("down_proj_blocks", blocks[:, :, :, :8])
    assert f"{FIRST}.down_proj_blocks[0] has shape [96, 4, 8]; expected [96, 64] or [96, 4, 16]" in found
    assert "has dtype F32; expected U8" in complaint("down_proj_blocks", blocks.float())
    nan = scales.clone()
    nan[2, 5, 1] = 255
    assert f"{FIRST}.down_proj_scales[2] has NaN (exponent 255) at [5, 1]" in complaint(
        "down_proj_scales", nan
    )
    found = complaint("down_proj_scales", scales, modules_to_not_convert=["model.layers.0.mlp.experts"])
    assert f"a dense {FIRST}.0.gate_up_proj" in found
    found = complaint("down_proj_scales", scales, quant_method=None)
    assert "but no quantization_config" in found
    fewer = complaint("down_proj_blocks", blocks[:3])
    assert f"{FIRST}.3.down_proj" in fewer


def test_a_configuration_of_mxfp4_for_dense_experts_is_refused(
    family: Callable[[str], Any], tmp_path: Path
) -> None:
    source = family("gpt_oss").path
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(load_file(source / "model.safetensors"), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="a configuration of MXFP4 for a checkpoint without one"):
        Checkpoint(tmp_path).check()


def test_other_experts_dense_in_one_layer_are_dequantised(
    folder: Path, parts: Mapping[str, Tensor], model: GptOssForCausalLM, pages: Any, tmp_path: Path
) -> None:
    """A layer whose down projections are dense is read as it is, and the other stack of it stays in 5 bits."""
    stack = f"{FIRST}.down_proj"
    saved = load_file(folder / "model.safetensors")
    saved[stack] = dense_of(parts, stack)
    del saved[f"{stack}_blocks"], saved[f"{stack}_scales"]
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(saved, tmp_path / "model.safetensors")
    assert "dense against the configuration" in str(Checkpoint(tmp_path).ready.description)
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
    logits = pages(loaded(tmp_path, "cpu")).step({"a": IDS})["a"]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
