"""Families: what each reads from its config.json, what it refuses, and the names that older exports use."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import pageant
from pageant import kernels
from pageant.models import Checkpoint, CheckpointError, DecoderSpec
from pageant.models.architectures import ARCHITECTURES
from pageant.models.loading import load_decoder
from pageant.models.spec import LinearScaling, LongRopeScaling, MLPSpec, MoESpec, RopeSpec, YarnScaling

GONE = ...


def changed(source: Path, target: Path, **changes: Any) -> Path:
    """Write source's config.json to target, some keys changed; those changed to ... are left out."""
    config = json.loads((source / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not GONE}
    (target / "config.json").write_text(json.dumps(kept))
    return target


@pytest.fixture
def spec(family: Callable[[str], Any], tmp_path: Path) -> Callable[..., DecoderSpec]:
    """Reads a family's configuration with some keys changed."""

    def read(name: str, **changes: Any) -> DecoderSpec:
        return Checkpoint(changed(family(name).path, tmp_path, **changes)).spec()

    return read


def test_every_architecture_is_tested_against_transformers(tested_architectures: set[str]) -> None:
    assert tested_architectures == set(ARCHITECTURES)


def test_the_guide_shows_a_file_as_it_is() -> None:
    root = Path(pageant.__file__).parent
    guide = (root / "docs/adding-an-architecture.md").read_text()
    source = (root / "models/architectures/starcoder2.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 2 and all(block in source for block in blocks)


# --- what is refused ---


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("gemma2", {"hidden_activation": "relu"}, "hidden_activation is 'relu'; expected one of silu, swish"),
        ("gemma2", {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar is -1; expected a positive number"),
        ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping is 0; expected a positive number"),
        (
            "gemma2",
            {"layer_types": ["sliding_attention"]},
            "layer_types is ['sliding_attention']; expected 3",
        ),
        ("gemma2", {"layer_types": ["chunked_attention"] * 3}, "layer_types is ['chunked_attention'"),
        ("gemma2", {"sliding_window": 0}, "sliding_window is 0; expected a whole number from 1 up"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0; expected None"),
        (
            "gemma3",
            {"rope_parameters": {"full_attention": {"rope_type": "mrope"}, "sliding_attention": {}}},
            "rope_parameters.full_attention.rope_type is 'mrope'",
        ),
        (
            "phi3",
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}},
            "rope_parameters.short_factor is [1.0]; expected 8 positive numbers",
        ),
        (
            "phi3",
            {"rope_parameters": GONE, "rope_scaling": {"type": "su", "short_factor": [0] * 8}},
            "rope_scaling.short_factor is [0, 0, 0, 0, 0, 0, 0, 0]; expected a list of positive",
        ),
        (
            "qwen2",
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0.5}},
            "rope_parameters.beta_fast is 0.5; expected no less than beta_slow",
        ),
        ("qwen2", {"rope_parameters": {"rope_type": "proportional"}}, "expected one of default, linear,"),
        (
            "phi3",
            {"rope_parameters": {"partial_rotary_factor": 0.3125}},
            "is 0.3125; expected an even number",
        ),
        ("phi3", {"rope_parameters": {"partial_rotary_factor": 1.5}}, "is 1.5; expected a share of the head"),
        ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.01}}, "is 0.01; expected a share"),
        ("starcoder2", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "factor is 0.5; expected 1"),
        ("starcoder2", {"hidden_act": "silu"}, "hidden_act is 'silu'; expected one of gelu, gelu_new"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("gemma", {"hidden_act": "silu"}, "hidden_act is 'silu'; expected one of gelu, gelu_new"),
        ("granite", {"logits_scaling": 0}, "logits_scaling is 0; expected a positive number"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers is [1, 0]; expected 3 times 0 or 1"),
        (
            "smollm3",
            {"use_sliding_window": False},
            "use_sliding_window is False; expected true, since layer_",
        ),
        ("gpt2", {"activation_function": "relu"}, "activation_function is 'relu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is True; expected False"),
        ("gpt2", {"n_head": 5}, "n_embd is 64; expected a multiple of num_attention_heads (5)"),
        ("gpt2", {"n_layer": 0}, "n_layer is 0"),
        ("gpt2", {"n_positions": GONE}, "no n_positions"),
        ("gpt_neox", {"rope_parameters": GONE, "rotary_pct": "a"}, "rotary_pct is 'a'"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts is 0"),
        ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok is 6; expected no more than the 5"),
        ("mixtral", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; expected one of silu"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size is 0"),
        ("qwen2_moe", {"mlp_only_layers": [-1]}, "mlp_only_layers is [-1]; expected a list of whole numbers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ("glm4_moe", {"n_group": 3}, "n_group is 3; expected a divisor of 8"),
        (
            "glm4_moe",
            {"n_group": 8},
            "n_group is 8; expected a divisor of 8 that leaves groups of two or more",
        ),
        ("glm4_moe", {"topk_group": 5}, "topk_group is 5; expected no more than the 4 groups"),
        ("glm4_moe", {"topk_group": 1}, "topk_group is 1; expected groups that have 3 experts together"),
        ("glm4_moe", {"scoring_func": "softmax"}, "scoring_func is 'softmax'; expected 'sigmoid'"),
        ("glm4_moe", {"routed_scaling_factor": -1.0}, "routed_scaling_factor is -1.0"),
        ("minimax_m2", {"use_qk_norm": False}, "use_qk_norm is False; expected True"),
        ("minimax_m2", {"rotary_dim": 18}, "rotary_dim is 18; expected no more than the head's 16"),
        ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob is 1; expected true or false"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob is True; expected False"),
        ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'; expected 'softmax'"),
        (
            "deepseek_v2",
            {"topk_method": "noaux_tc"},
            "topk_method is 'noaux_tc'; expected greedy or group_limited_greedy",
        ),
        ("deepseek_v2", {"n_group": 3}, "n_group is 3; expected a divisor of 8"),
        ("deepseek_v2", {"kv_lora_rank": 0}, "kv_lora_rank is 0; expected a whole number from 1 up"),
        ("deepseek_v2", {"qk_rope_head_dim": 7}, "is 7; expected an even number"),
        ("deepseek_v2", {"mlp_bias": True}, "mlp_bias is True; expected False"),
        ("deepseek_v3_grouped", {"q_lora_rank": "a"}, "q_lora_rank is 'a'"),
        ("deepseek_v3_grouped", {"topk_method": "greedy"}, "topk_method is 'greedy'; expected 'noaux_tc'"),
        ("deepseek_v3_grouped", {"moe_layer_freq": 2}, "moe_layer_freq is 2; expected 1"),
        ("deepseek_v3_grouped", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    ],
    ids=str,
)
def test_a_bad_or_unsupported_value_is_refused_by_key(
    spec: Callable[..., DecoderSpec], name: str, changes: dict[str, Any], found: str
) -> None:
    with pytest.raises(CheckpointError) as error:
        spec(name, **changes)
    assert found in str(error.value) and error.value.remedy


# --- older ways to say the same ---


def test_keys_that_are_absent_mean_what_they_mean_in_transformers(spec: Callable[..., DecoderSpec]) -> None:
    gemma2 = spec(
        "gemma2",
        **dict.fromkeys(
            (
                *("tie_word_embeddings", "attn_logit_softcapping", "final_logit_softcapping"),
                *("layer_types", "query_pre_attn_scalar", "sliding_window", "hidden_activation"),
            ),
            GONE,
        ),
    )
    assert gemma2.tie_word_embeddings and gemma2.attention.softcap == 50 and gemma2.logit_softcap == 30
    assert [layer.window for layer in gemma2.layers] == [4096, None, 4096]
    assert gemma2.attention.scale == 256**-0.5
    assert spec("gpt2", n_inner=GONE, tie_word_embeddings=GONE).tie_word_embeddings
    mixtral = spec("mixtral", num_experts_per_tok=GONE, rope_parameters=GONE).layers[0]
    assert isinstance(mixtral.mlp, MoESpec) and mixtral.mlp.top_k == 2
    assert mixtral.rope is not None and mixtral.rope.theta == 1e6


@pytest.mark.parametrize(
    ("name", "kind"), [("gemma3", "wide_rms"), ("olmo2", "wide_rms"), ("qwen3", "rms"), ("gpt2", "layer")]
)
def test_norms_round_where_the_family_rounds(spec: Callable[..., DecoderSpec], name: str, kind: str) -> None:
    assert spec(name).norm.kind == kind


def test_norms_that_multiply_in_float32_keep_their_weights_so(family: Callable[[str], Any]) -> None:
    decoder, checkpoint = family("gemma2").load("bfloat16"), Checkpoint(family("gemma2").path)
    places = checkpoint.decoder()[1]
    assert decoder.weight(places["model.layers.2.pre_feedforward_layernorm.weight"]).dtype == torch.float32
    assert decoder.weight(places["model.layers.2.mlp.up_proj.weight"]).dtype == torch.bfloat16


def test_gemma_3_before_transformers_5_reads_as_it_does_now(spec: Callable[..., DecoderSpec]) -> None:
    old = spec(
        "gemma3",
        rope_parameters=GONE,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        layer_types=GONE,
        sliding_window_pattern=2,
    )
    ropes = [layer.rope for layer in old.layers]
    assert [rope.theta for rope in ropes if rope] == [1e4, 1e6, 1e4]
    assert [rope.scaling for rope in ropes if rope] == [None, LinearScaling(factor=8.0), None]
    assert [layer.window for layer in old.layers] == [9, None, 9]


def test_pythia_before_transformers_5_reads_as_it_does_now(spec: Callable[..., DecoderSpec]) -> None:
    old = spec("gpt_neox", rope_parameters=GONE, rotary_pct=0.5, rotary_emb_base=500).layers[0].rope
    assert old is not None and (old.theta, old.rotary_dim) == (500, 8)
    default = spec("gpt_neox", rope_parameters=GONE).layers[0].rope
    assert default is not None and default.rotary_dim == 4


def test_phi_3s_long_rotation_had_other_names(spec: Callable[..., DecoderSpec]) -> None:
    now = spec("phi3_long").layers[0].rope
    assert isinstance(now, RopeSpec) and isinstance(now.scaling, LongRopeScaling)
    factors = {"short_factor": now.scaling.short_factors, "long_factor": now.scaling.long_factors}
    for name in ("su", "yarn", "longrope"):
        old = {"type": name, **factors}
        assert spec("phi3_long", rope_parameters=GONE, rope_scaling=old).layers[0].rope == now


def test_minimax_says_how_much_of_a_head_it_turns_in_two_ways(spec: Callable[..., DecoderSpec]) -> None:
    now = spec("minimax_m2").layers[0].rope
    old = spec("minimax_m2", rope_parameters=GONE, rope_theta=10_000, rotary_dim=8).layers[0].rope
    assert now is not None and old is not None and (now.rotary_dim, old.rotary_dim) == (8, 8)
    whole = spec("minimax_m2", rope_parameters=GONE).layers[0].rope
    assert whole is not None and (whole.theta, whole.rotary_dim) == (5e6, 16)


def test_gpt_oss_as_it_was_released(spec: Callable[..., DecoderSpec]) -> None:
    """The keys of the published config.json, which transformers 5 writes otherwise."""
    scaling = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    old = spec(
        "gpt_oss",
        rope_parameters=GONE,
        rope_theta=150_000,
        rope_scaling=scaling | {"original_max_position_embeddings": 4096},
        initial_context_length=4096,
        max_position_embeddings=131_072,
        num_experts_per_tok=GONE,
        experts_per_token=2,
        layer_types=GONE,
        swiglu_alpha=GONE,
        attention_bias=GONE,
    )
    rope, mlp = old.layers[0].rope, old.layers[0].mlp
    assert rope is not None and rope.theta == 150_000 and isinstance(rope.scaling, YarnScaling)
    assert (rope.scaling.factor, rope.scaling.truncate) == (32.0, False) and old.max_model_len == 131_072
    assert isinstance(mlp, MoESpec) and mlp.top_k == 2 and mlp.activation == "clamped_swiglu"
    assert [layer.window for layer in old.layers] == [9, None, 9] and old.attention.qkv_bias


def test_deepseek_as_it_was_released(spec: Callable[..., DecoderSpec]) -> None:
    """The sizes and keys of the published config.json files."""
    scaling = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    lite = spec(
        "deepseek_v2_lite",
        **{"rope_parameters": GONE, "rope_theta": 10_000, "max_position_embeddings": 163_840},
        **{"num_attention_heads": 16, "hidden_size": 2048, "kv_lora_rank": 512, "q_lora_rank": None},
        **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
        rope_scaling=scaling | {"beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707},
    )
    attention, rope = lite.attention, lite.layers[0].rope
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (16, 1, 576)
    assert attention.latent is not None and attention.latent.query_rank is None
    assert attention.scale == pytest.approx(192**-0.5 * (0.0707 * math.log(40) + 1) ** 2)
    assert rope is not None and isinstance(rope.scaling, YarnScaling) and rope.scaling.attention_factor == 1
    assert (rope.rotary_dim, lite.max_model_len) == (64, 163_840)
    kimi = spec(
        "deepseek_v3_grouped",
        **{"rope_parameters": GONE, "rope_theta": 50_000.0, "n_group": 1, "topk_group": 1},
        **{"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
        rope_scaling=scaling | {"beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    )
    mlp, rope = kimi.layers[1].mlp, kimi.layers[1].rope
    assert isinstance(kimi.layers[0].mlp, MLPSpec) and isinstance(mlp, MoESpec)
    assert (mlp.scores, mlp.groups, mlp.scale) == ("sigmoid", 1, 2.5) and not mlp.shared_switch
    assert rope is not None and isinstance(rope.scaling, YarnScaling)
    assert (rope.scaling.beta_fast, rope.scaling.attention_factor) == (1.0, 1.0)


def test_keys_of_latents_that_are_absent_mean_what_they_mean_in_transformers(
    spec: Callable[..., DecoderSpec],
) -> None:
    sizes = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latent = spec("deepseek_v3_grouped", **dict.fromkeys(sizes, GONE)).attention.latent
    assert latent is not None and latent.in_pairs
    assert (latent.rank, latent.query_rank, latent.plain, latent.rotary, latent.value) == (
        *(512, 1536),
        *(128, 64, 128),
    )


def test_olmo_3_before_transformers_5_reads_as_it_does_now(spec: Callable[..., DecoderSpec]) -> None:
    """Scale the layers without a window alone."""
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
    old = spec("olmo3", rope_parameters=GONE, rope_theta=5e4, rope_scaling=scaling, layer_types=GONE)
    ropes = [layer.rope for layer in old.layers]
    assert [rope.theta for rope in ropes if rope] == [5e4] * 4
    assert [rope.scaling is not None for rope in ropes if rope] == [False, False, False, True]
    assert [layer.window for layer in old.layers] == [9, 9, 9, None]


def test_layers_that_turn_nothing_are_where_the_configuration_says(spec: Callable[..., DecoderSpec]) -> None:
    def turned(**changes: Any) -> list[bool]:
        return [layer.rope is not None for layer in spec("smollm3", **changes).layers]

    assert turned() == [True, False, True]
    assert turned(no_rope_layers=GONE, num_hidden_layers=4, layer_types=GONE) == [True, True, True, False]
    assert spec("smollm3", layer_types=GONE).layers == spec("smollm3").layers


def test_qwen3_moe_names_its_experts_in_two_ways(spec: Callable[..., DecoderSpec]) -> None:
    assert spec("qwen3_moe", num_local_experts=GONE, num_experts=6) == spec("qwen3_moe")


def test_dense_layers_of_a_mixture_are_where_the_configuration_says(spec: Callable[..., DecoderSpec]) -> None:
    def dense(**changes: Any) -> list[bool]:
        return [isinstance(layer.mlp, MLPSpec) for layer in spec("qwen3_moe", **changes).layers]

    assert dense() == [False, False, False]
    assert dense(decoder_sparse_step=2) == [True, False, True]
    assert dense(mlp_only_layers=[0]) == [True, False, False]


# --- names of tensors ---


def renamed(source: Path, target: Path, rename: Callable[[str], str], **more: torch.Tensor) -> Path:
    """Copy a checkpoint, its tensors renamed and some added."""
    shutil.copy(source / "config.json", target)
    tensors = {rename(name): tensor for name, tensor in load_file(source / "model.safetensors").items()}
    save_file(tensors | more, target / "model.safetensors")
    return target


@pytest.mark.parametrize(
    ("name", "prefix", "buffer"),
    [("gpt2", "transformer.", "h.1.attn.bias"), ("gpt_neox", "none.", "gpt_neox.layers.0.attention.bias")],
)
def test_other_names_and_saved_masks_are_read_past(
    family: Callable[[str], Any], tmp_path: Path, name: str, prefix: str, buffer: str
) -> None:
    """GPT-2 as it is on the hub has no prefix, and it and Pythia come with their causal masks."""
    source = family(name).path
    path = renamed(source, tmp_path, lambda key: key.removeprefix(prefix), **{buffer: torch.ones(1, 1)})
    Checkpoint(path).check()
    decoder, expected = load_decoder(Checkpoint(path), kernels=kernels.load("reference")), family(name).load()
    places = Checkpoint(path).decoder()[1].values()
    assert all(torch.equal(decoder.weight(place), expected.weight(place)) for place in places)


def test_a_complaint_names_a_tensor_as_the_file_does(family: Callable[[str], Any], tmp_path: Path) -> None:
    path = renamed(family("gpt2").path, tmp_path, lambda key: key.removeprefix("transformer."))
    tensors = load_file(path / "model.safetensors")
    save_file(tensors | {"wte.weight": torch.zeros(3, 4)}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r": wte\.weight has shape \[3, 4\]; expected \[331, 64\]"):
        Checkpoint(path).check()


@pytest.mark.parametrize("name", ["glm4_moe", "deepseek_v3_grouped"])
def test_layers_that_only_draft_are_read_past(
    family: Callable[[str], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """GLM-4.5 and DeepSeek-V3 have one behind their last (MTP), with names of its own and of any other layer."""
    caplog.set_level(logging.INFO, "pageant.models")
    load_decoder(Checkpoint(family(name).path), kernels=kernels.load("reference"))
    assert "MTP" not in caplog.text
    more = {f"model.layers.3.{name}": torch.zeros(2, 2) for name in ("eh_proj.weight", "mlp.gate.weight")}
    path = renamed(family(name).path, tmp_path, str, **more)
    Checkpoint(path).check()
    load_decoder(Checkpoint(path), kernels=kernels.load("reference"))
    assert "2 tensors of layers that only draft (MTP) are passed over" in caplog.text
    with pytest.raises(CheckpointError, match=r"unknown tensors: model\.layers\.2\.eh_proj\.weight"):
        extra = {"model.layers.2.eh_proj.weight": torch.zeros(2, 2)}
        Checkpoint(renamed(family(name).path, tmp_path, str, **extra)).check()


def test_a_missing_expert_is_named(family: Callable[[str], Any], tmp_path: Path) -> None:
    gone = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    path = renamed(family("mixtral").path, tmp_path, lambda key: "gone" if key == gone else key)
    with pytest.raises(CheckpointError, match="missing tensors: " + gone.replace(".", r"\.")):
        Checkpoint(path).check()
