"""config.json: what a checkpoint says about its model, and values that are refused by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pageant.models import Checkpoint
from tests.models.small_checkpoints import change_tensors, complaint, write_config

QWEN_WINDOW = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}


def test_no_config_is_named(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "no config.json" in complaint(folder)


@pytest.mark.parametrize("text", ['{"hidden_size": 8,', "", "\x00\xff"])
def test_invalid_json_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text, encoding="latin-1")
    assert "config.json: not readable as JSON" in complaint(folder)


def test_json_that_is_no_object_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("[1]")
    assert "config.json: a JSON list; expected a JSON object" in complaint(folder)


@pytest.mark.parametrize("value", [..., None, []])
def test_no_architecture_is_refused_with_the_known_ones(folder: Path, value: object) -> None:
    write_config(folder, architectures=value)
    assert "no architectures; expected one of LlamaForCausalLM, MistralForCausalLM" in complaint(folder)


def test_an_unknown_architecture_is_refused_with_the_known_ones(folder: Path) -> None:
    write_config(folder, architectures=["MambaForCausalLM"])
    message = complaint(folder)
    assert "architectures is 'MambaForCausalLM'" in message and "Qwen3ForCausalLM" in message


def test_code_in_a_checkpoint_is_never_run(folder: Path) -> None:
    write_config(folder, auto_map={"AutoModel": "modeling.Model"})
    assert "auto_map" in complaint(folder) and "never run" in complaint(folder)


def test_code_of_a_class_that_is_known_by_now_is_passed_over(folder: Path) -> None:
    """Phi-3 came with code of its own before transformers had it."""
    (folder / "modeling.py").write_text("raise SystemExit('this ran')")
    write_config(folder, auto_map={"AutoModelForCausalLM": "modeling.LlamaForCausalLM"})
    Checkpoint(folder).check()
    write_config(folder, auto_map={"AutoModelForCausalLM": "modeling.MistralForCausalLM"})
    assert "never run" in complaint(folder)


def test_quantised_weights_are_refused_by_method(folder: Path) -> None:
    write_config(folder, quantization_config={"quant_method": "quip"})
    assert "quantization_config with the method 'quip'; expected one of gptq, awq" in complaint(folder)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1; expected a whole number from 1 to 1000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; expected a whole number from 1 to"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"vocab_size": "10"}, "vocab_size is '10'"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"intermediate_size": 1.5}, "intermediate_size is 1.5"),
        ({"intermediate_size": ...}, "no intermediate_size; expected a whole number from 1 up"),
        ({"max_position_embeddings": None}, "no max_position_embeddings"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor of 4"),
        ({"hidden_size": 10}, "hidden_size is 10; expected a multiple of num_attention_heads (4)"),
        ({"head_dim": 5}, "head_dim is 5; expected an even number"),
        (QWEN_WINDOW | {"max_window_layers": -1}, "max_window_layers is -1; expected a whole number from 0"),
        (QWEN_WINDOW | {"layer_types": ["sliding_attention"] * 2}, "expected 1 times sliding_attention or"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; expected true or false"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; expected one of silu"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype is 'float8_e4m3fn'; expected one of float32, float16"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'; expected a list"),
        ({"rope_scaling": {"rope_type": "mrope", "factor": 4.0}}, "rope_scaling.rope_type is 'mrope'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 0}}, "rope_parameters.factor is 0"),
        ({"rope_scaling": {"type": "linear"}}, "no rope_scaling.factor"),
        ({"rope_scaling": [1]}, "rope_scaling is [1]; expected an object"),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "expected nothing that rope_parameters does not say too",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; expected 1"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'; expected a token id"),
    ],
    ids=str,
)
def test_an_absurd_or_unsupported_value_is_refused_by_key(
    folder: Path, changes: dict[str, object], found: str
) -> None:
    write_config(folder, **changes)
    assert found in complaint(folder)


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        (2, [3, 4], (3, 4)),
        (2, 7, (7,)),
        (2, None, (2,)),
        ([5, 6], ..., (5, 6)),
        (None, None, ()),
        (0, ..., (0,)),
        ([2, 10, 99], ..., (2,)),  # the model has 10 tokens
    ],
)
def test_end_tokens_come_from_the_generation_config_first(
    folder: Path, in_config: object, in_generation: object, expected: tuple[int, ...]
) -> None:
    write_config(folder, eos_token_id=in_config)
    if in_generation is not ...:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": in_generation}))
    assert Checkpoint(folder).eos_token_ids == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": ..., "dtype": "float16"}, "float16"),
        ({"torch_dtype": ...}, "float32"),
    ],
)
def test_the_dtype_is_the_configurations_or_else_the_weights(
    folder: Path, changes: dict[str, object], expected: str
) -> None:
    write_config(folder, **changes)
    assert Checkpoint(folder).dtype == expected


def test_a_constant_among_the_weights_does_not_say_their_dtype(folder: Path) -> None:
    write_config(folder, torch_dtype=...)
    change_tensors(folder, {"a.rotary_emb.inv_freq": torch.ones(3).long()})
    assert next(iter(Checkpoint(folder).tensors.values())).dtype == "I64"
    assert Checkpoint(folder).dtype == "float32"


def test_the_spec_is_what_transformers_reads(any_family: Any) -> None:
    spec, config = Checkpoint(any_family.path).decoder()[0], any_family.model.config
    heads = spec.attention.num_heads
    assert spec.vocab_size == config.vocab_size and spec.num_layers == config.num_hidden_layers
    scaling = getattr(config, "rope_parameters", None) or {}
    times = scaling["factor"] if scaling.get("rope_type") == "linear" else 1  # a scaling that adds positions
    assert spec.max_model_len == times * config.max_position_embeddings
    assert heads == config.num_attention_heads
    if spec.attention.latent is not None:
        assert spec.attention.num_kv_heads == 1
        assert spec.attention.head_dim == config.kv_lora_rank + config.qk_rope_head_dim
        return
    assert spec.attention.num_kv_heads == getattr(config, "num_key_value_heads", heads)
    assert spec.attention.head_dim == (getattr(config, "head_dim", None) or config.hidden_size // heads)
    assert spec.tie_word_embeddings == config.tie_word_embeddings
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    windows = tuple(layer.window for layer in spec.layers)
    if kinds is None:
        assert windows == (window,) * spec.num_layers
    else:
        assert windows == tuple(window if kind == "sliding_attention" else None for kind in kinds)


def test_both_ways_to_write_rotary_scaling_mean_the_same(folder: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    write_config(folder, rope_theta=5e5, rope_scaling=scaling | {"type": "llama3"})
    old = Checkpoint(folder).decoder()[0].layers[0].rope
    parameters = scaling | {"rope_type": "llama3", "rope_theta": 5e5, "original_max_position_embeddings": 64}
    write_config(folder, rope_theta=..., rope_parameters=parameters)
    assert Checkpoint(folder).decoder()[0].layers[0].rope == old
    assert old is not None and old.theta == 5e5 and old.scaling is not None


def test_a_scaling_may_stand_in_both_places_if_it_is_the_same(folder: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    write_config(folder, rope_parameters=scaling | {"rope_theta": 5e5}, rope_scaling=scaling)
    rope = Checkpoint(folder).decoder()[0].layers[0].rope
    assert rope is not None and rope.theta == 5e5 and rope.scaling is not None


@pytest.mark.parametrize(
    ("scaling", "times"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 4),
        ({"rope_type": "yarn", "factor": 4.0}, 4),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 1),
        ({"rope_type": "dynamic", "factor": 4.0}, 1),
    ],
    ids=str,
)
def test_scaled_rotations_serve_more_positions(folder: Path, scaling: dict[str, object], times: int) -> None:
    longest = Checkpoint(folder).spec().max_model_len
    write_config(folder, rope_scaling=scaling)
    assert Checkpoint(folder).spec().max_model_len == times * longest


@pytest.mark.parametrize(("written", "window"), [(..., 4096), (None, None), (7, 7)])
def test_mistral_without_a_window_differs_from_mistral_without_a_word(
    folder: Path, written: object, window: int | None
) -> None:
    write_config(folder, architectures=["MistralForCausalLM"], sliding_window=written)
    assert [layer.window for layer in Checkpoint(folder).decoder()[0].layers] == [window]


def test_a_configuration_without_optional_keys_reads_as_in_transformers(folder: Path) -> None:
    write_config(folder, num_key_value_heads=..., rope_theta=..., hidden_act=..., tie_word_embeddings=...)
    spec = Checkpoint(folder).decoder()[0]
    rope = spec.layers[0].rope
    assert rope is not None and rope.theta == 10_000.0
    assert spec.attention.num_kv_heads == 4 and not spec.tie_word_embeddings
