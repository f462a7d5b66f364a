"""Every family that llama.cpp has a name for computes what transformers does, from a file in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import pytest
import torch

from pageant.kernels.quantized import QuantizedWeight, dequantize
from pageant.models.architectures import ARCHITECTURES
from pageant.models.gguf.families import FAMILIES
from pageant.models.sharding import Shard

IDS = [5, 9, 7, 11, 30, 2, 8, 17, 90, 33, 41, 3, 200, 77, 12, 6, 55, 101]
FORMS = (
    *(
        "llama",
        "llama3_tied",
        "llama_biased",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2_yarn",
        "qwen2_moe",
        "qwen3",
    ),
    *("qwen3_moe", "gemma", "gemma2", "gemma3", "phi3", "granite", "smollm3", "olmo2", "olmo3", "starcoder2"),
    *("gpt2", "gpt_neox", "gpt_oss"),
)


def logits_of(decoder: Any, pages: Any) -> torch.Tensor:
    """Compute in two chunks and a decode, past every window."""
    run = pages(decoder)
    chunks = (IDS[:10], IDS[10:-1], IDS[-1:])
    return torch.cat([run.step({"a": chunk})["a"] for chunk in chunks])


@pytest.mark.parametrize("name", FORMS)
def test_logits_are_those_of_transformers(written: Callable[..., Any], pages: Any, name: str) -> None:
    file = written(name)
    with torch.inference_mode():
        expected = file.model(torch.tensor([IDS])).logits[0]
    assert expected.square().mean().sqrt() > 0.1, "logits that are all but zero would be near to anything"
    torch.testing.assert_close(logits_of(file.load(), pages), expected, rtol=1e-4, atol=1e-4)


def test_rotations_of_long_contexts_are_those_of_the_model(written: Callable[..., Any], pages: Any) -> None:
    """transformers switches the divisors by the length of a text, and this engine by the longest that it serves."""
    file = written("phi3_long")
    model = file.model
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
        found = logits_of(file.load(max_model_len=64), pages)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    scaling = file.checkpoint().spec().layers[0].rope.scaling
    assert scaling.long_factors == tuple(model.config.rope_parameters["long_factor"])


UNNAMED = {
    *("Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
    *("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "BambaForCausalLM"),
    *("Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "FalconH1ForCausalLM", "NemotronHForCausalLM"),
    "GraniteMoeHybridForCausalLM",
}


def test_all_architectures_but_those_without_a_name_can_come_as_files() -> None:
    named = {family.architecture for family in FAMILIES.values()}
    assert named <= set(ARCHITECTURES)
    # Mistral is a llama to llama.cpp, without its window.
    assert set(ARCHITECTURES) - named == {"MistralForCausalLM", *UNNAMED}


def test_experts_of_gpt_oss_in_mxfp4_are_those_of_the_file(written: Callable[..., Any]) -> None:
    file = written("gpt_oss", {"_exps": "MXFP4"})
    assert "6 matrices exact in 5.5 bits a weight" in file.checkpoint().ready.description
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file.path).tensors}

    def saved(name: str) -> torch.Tensor:
        tensor = tensors[f"blk.1.ffn_{name}_exps.weight"]
        return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type))

    weights = file.load()._layer_weights[1]
    assert torch.equal(plain(weights["expert_down.weight"]), saved("down"))
    gates_and_ups = torch.cat((saved("gate"), saved("up")), dim=1)
    assert torch.equal(plain(weights["expert_gate_up.weight"]), gates_and_ups)


def plain(weight: Any) -> torch.Tensor:
    """Return a weight's numbers in float32."""
    return dequantize(weight, torch.float32) if isinstance(weight, QuantizedWeight) else weight


@pytest.mark.parametrize(
    ("name", "kind"),
    [("llama_biased", "F32"), ("gpt2", "F32"), ("gpt_neox", "F32"), ("llama", "Q5_0"), ("llama", "Q4_1")],
)
def test_ranks_read_their_shares_of_a_file(written: Callable[..., Any], name: str, kind: str) -> None:
    """Rows that change places do so within a head, and heads stay whole."""
    file = written(name, kind)
    whole = file.load()
    head_dim = whole.spec.attention.head_dim
    for rank in range(2):
        part = file.load(shard=Shard(rank, 2))
        for ours, theirs in zip(part._layer_weights, whole._layer_weights, strict=True):
            size = whole.spec.attention.query_size // 2
            rows = slice(rank * size, (rank + 1) * size)
            assert size % head_dim == 0
            assert torch.equal(plain(ours["qkv.weight"])[:size], plain(theirs["qkv.weight"])[rows])
            assert torch.equal(plain(ours["o.weight"]), plain(theirs["o.weight"])[:, rows])
            if "qkv.bias" in theirs:
                assert torch.equal(ours["qkv.bias"][:size], theirs["qkv.bias"][rows])
