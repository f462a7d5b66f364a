"""Folders of adapters that are refused before any weight is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pageant.models.adapters.checkpoint import AdapterCheckpoint
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError

FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


@pytest.fixture
def refused(family: Callable[[str], Any], save_adapter: Callable[..., Any]) -> Callable[..., CheckpointError]:
    """Changes an adapter of a family, and returns the error that it meets."""

    def refuse(
        base: str = "llama",
        modules: tuple[str, ...] = ("q_proj", "o_proj"),
        rank_max: int = 256,
        **changes: Any,
    ) -> CheckpointError:
        model = family(base)
        adapter = save_adapter(model.model, modules)
        rename = changes.pop("rename", None)
        if rename is not None:
            file = adapter.path / "adapter_model.safetensors"
            save_file(rename(load_file(file)), file)
        adapter.change(**changes)
        with pytest.raises(CheckpointError) as error:
            AdapterCheckpoint(adapter.path).targets(Checkpoint(model.path), rank_max)
        assert error.value.remedy
        return error.value

    return refuse


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; expected LORA"),
        ({"peft_type": None}, "no peft_type"),
        ({"use_dora": True}, "use_dora is True; expected none"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"bias": "lora_only"}, "bias is 'lora_only'; expected 'none'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters is"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices is [3]"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens is [1, 2]"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights is 'lora_ga'"),
        ({"r": 0}, "r is 0; expected a whole number from 1 up"),
        ({"r": 4}, "layers.0.self_attn.o_proj.lora_A.weight has shape [3, 96]; expected shape [4, 96]"),
        ({"rank_pattern": {"q_proj": "3"}}, "rank_pattern is '3'"),
        ({"rank_pattern": {"(": 3}}, "rank_pattern is '('; expected a regular expression"),
        ({"alpha_pattern": {"q_proj": "3"}}, "alpha_pattern is '3'; expected a number"),
        ({"lora_alpha": "much"}, "lora_alpha is 'much'; expected a positive number"),
        ({"target_modules": ["q_proj", "v_proj"]}, "no tensors for model.layers.0.self_attn.v_proj"),
    ],
    ids=str,
)
def test_a_configuration_that_means_something_else_is_refused_by_key(
    refused: Callable[..., CheckpointError], changes: dict[str, Any], found: str
) -> None:
    assert found in str(refused(**changes))


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {key: one for key, one in tensors.items() if key != name}


def with_tensor(name: str, tensor: torch.Tensor) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: tensors | {name: tensor}


@pytest.mark.parametrize(
    ("rename", "found"),
    [
        (without(f"{FIRST}B.weight"), f"no tensor {FIRST}B.weight; expected one of shape [96, 3]"),
        (without(f"{FIRST}A.weight"), f"no tensor {FIRST}A.weight; expected one of shape [3, 96]"),
        (with_tensor(f"{FIRST}B.weight", torch.ones(96, 4)), "has shape [96, 4]; expected shape [96, 3]"),
        (with_tensor(f"{FIRST}B.weight", torch.ones(96, 3).char()), "has dtype I8; expected one of F32"),
        (with_tensor("something", torch.ones(1)), "the tensor something"),
        (
            with_tensor("base_model.model.model.embed_tokens.lora_embedding_A", torch.ones(1)),
            "lora_embedding_A",
        ),
        (
            with_tensor("base_model.model.model.layers.9.mlp.up_proj.lora_A.weight", torch.ones(3, 96)),
            "tensors for model.layers.9.mlp.up_proj; expected modules of this model",
        ),
        (lambda tensors: {}, "no tensors"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    refused: Callable[..., CheckpointError], rename: Any, found: str
) -> None:
    assert found in str(refused(rename=rename))


@pytest.mark.parametrize(
    ("base", "module"),
    [("llama", "lm_head"), ("qwen2_moe", "mlp.gate"), ("qwen2_moe", "mlp.shared_expert_gate")],
)
def test_only_linear_maps_of_attention_and_mlps_have_adapters(
    refused: Callable[..., CheckpointError], base: str, module: str
) -> None:
    def add(tensors: dict[str, Any]) -> dict[str, Any]:
        prefix = "" if module == "lm_head" else "model.layers.0."
        return {f"base_model.model.{prefix}{module}.lora_A.weight": torch.ones(3, 64), **tensors}

    assert "expected linear maps of attention and of MLPs only" in str(refused(base, rename=add))


def test_adapters_for_a_model_that_transformers_runs_are_refused(
    refused: Callable[..., CheckpointError],
) -> None:
    error = refused("olmoe")
    assert "an adapter for OlmoeForCausalLM, which transformers runs" in str(error)


def test_larger_ranks_than_allowed_are_refused(refused: Callable[..., CheckpointError]) -> None:
    assert "rank 3 at model.layers.0.self_attn.o_proj; expected at most 2" in str(refused(rank_max=2))


def test_a_folder_without_an_adapter_is_refused(
    family: Callable[[str], Any], save_adapter: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="no such folder; expected an adapter's folder"):
        AdapterCheckpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no adapter_config\.json"):
        AdapterCheckpoint(tmp_path)
    adapter = save_adapter(family("llama").model, ("q_proj",))
    weights = adapter.path / "adapter_model.safetensors"
    weights.rename(adapter.path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"only adapter_model\.bin; expected adapter_model\.safe"):
        AdapterCheckpoint(adapter.path).targets(Checkpoint(family("llama").path))


@pytest.mark.parametrize(
    "config",
    [{"target_modules": "all-linear"}, {"layers_to_transform": [1]}, {"exclude_modules": ["v_proj"]}],
)
def test_what_a_pattern_leaves_out_is_not_missed(
    family: Callable[[str], Any], save_adapter: Callable[..., Any], config: dict[str, Any]
) -> None:
    model = family("llama")
    adapter = save_adapter(model.model, ("layers.1.self_attn.q_proj",))
    adapter.change(**{"target_modules": ["q_proj", "v_proj"], **config})
    (target,) = AdapterCheckpoint(adapter.path).targets(Checkpoint(model.path))
    assert (target.module, target.rank, target.scale) == ("model.layers.1.self_attn.q_proj", 3, 2.0)
