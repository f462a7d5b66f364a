"""Architectures by their names in llama.cpp, and the keys of config.json that each has for itself.

Every function reads metadata and returns part of a config.json. All raise CheckpointError naming the key that is
missing or makes no sense. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pageant.models.gguf.metadata import Metadata
from pageant.models.gguf.names import FUSED, FUSED_GATE, GPT_OSS, NAMES, PAIRED
from pageant.models.names import Names
from pageant.models.tensor_files import TensorInfo

__all__ = ["FAMILIES", "Family", "names_of"]

Tensors = Mapping[str, TensorInfo]
Own = Callable[[Metadata, Tensors], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Family:
    """A name of llama.cpp's for models."""

    architecture: str
    """A name of `models.architectures`."""
    model_type: str
    """As transformers calls it."""
    own: Own
    """The keys of config.json that not all families have."""
    names: Names = NAMES
    yarn: Mapping[str, Any] = field(default_factory=dict)
    """Keys of YaRN's scaling that files have nowhere."""


def _plain(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    return {}


def _llama(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    biased = "blk.0.attn_q.bias" in tensors
    return {"attention_bias": biased, "mlp_bias": "blk.0.ffn_up.bias" in tensors}


def _mixtral(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    return {
        "num_local_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "intermediate_size": _rows(tensors, "blk.0.ffn_up_exps.0.weight", metadata),
    }


def _gpt_oss(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    return {
        "num_local_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "intermediate_size": _rows(tensors, "blk.0.ffn_up_exps.0.weight", metadata),
        "sliding_window": metadata.count(".attention.sliding_window", 128),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
    }


def _qwen3(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in tensors}


def _qwen_moe(normalises: bool) -> Own:
    def own(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
        found = {
            "num_experts": metadata.count(".expert_count"),
            "num_experts_per_tok": metadata.count(".expert_used_count"),
            "norm_topk_prob": metadata.flag(".expert_weights_norm", normalises),
            "moe_intermediate_size": _rows(tensors, "blk.0.ffn_up_exps.0.weight", metadata),
        }
        found["intermediate_size"] = metadata.count(".feed_forward_length", found["moe_intermediate_size"])
        if "blk.0.ffn_up_shexp.weight" in tensors:
            found["shared_expert_intermediate_size"] = tensors["blk.0.ffn_up_shexp.weight"].shape[0]
        return found

    return own


def _rows(tensors: Tensors, name: str, metadata: Metadata) -> int:
    """Rows of a tensor: a size that files may lack in their metadata."""
    if name not in tensors:
        raise metadata.missing(name, "a tensor of a mixture of experts")
    return tensors[name].shape[0]


def _gemma(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    return {"hidden_act": "gelu_pytorch_tanh"}


def _gemma2(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": _score_size(metadata, layers_of_largest=46),
        "attn_logit_softcapping": metadata.number(".attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.number(".final_logit_softcapping", 30.0),
        "sliding_window": metadata.count(".attention.sliding_window", 4096),
    }


def _gemma3(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    found: dict[str, Any] = {
        "query_pre_attn_scalar": _score_size(metadata, layers_of_largest=62),
        "sliding_window": metadata.count(".attention.sliding_window", 1024),
        "rope_local_base_freq": metadata.number(".rope.freq_base_swa", 10_000.0),
        "layer_types": _layer_types(metadata, 6),
    }
    if ".final_logit_softcapping" in metadata:
        found["final_logit_softcapping"] = metadata.number(".final_logit_softcapping")
    return found


def _score_size(metadata: Metadata, layers_of_largest: int) -> float:
    """The number by whose root scores are divided: not in a file, and known for each size of Gemma."""
    heads = metadata.count(".attention.head_count")
    shared = metadata.count(".embedding_length") / heads
    if metadata.count(".block_count") == layers_of_largest:
        return shared
    return metadata.count(".attention.key_length", int(shared))


def _layer_types(metadata: Metadata, period: int) -> list[str]:
    """The kind of each layer: by an array in the file, or every so many are full, the last of them."""
    num_layers = metadata.count(".block_count")
    key = ".attention.sliding_window_pattern"
    value = metadata.get(key)
    if value is None or isinstance(value, int):
        period = metadata.count(key, period)
        slides = [(layer + 1) % period != 0 for layer in range(num_layers)]
    else:
        array = metadata.array(key)
        assert array is not None, "it is there"
        if len(array) < num_layers:
            raise metadata.wrong(key, f"an array of {len(array)}", f"one for each of {num_layers} layers")
        slides = [bool(one) for one in array.numbers()[:num_layers].tolist()]
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def _phi3(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    window = metadata.count(".attention.sliding_window", 0, minimum=0)
    heads = metadata.count(".attention.head_count")
    head_dim = metadata.count(".attention.key_length", metadata.count(".embedding_length") // heads)
    share = metadata.count(".rope.dimension_count", head_dim) / head_dim
    return {"sliding_window": window or None, "partial_rotary_factor": share}


def _granite(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    return _llama(metadata, tensors) | {
        "attention_multiplier": metadata.number(".attention.scale"),
        "embedding_multiplier": metadata.number(".embedding_scale", 1.0),
        "residual_multiplier": metadata.number(".residual_scale", 1.0),
        "logits_scaling": metadata.number(".logit_scale", 1.0),
    }


def _smollm3(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    return _llama(metadata, tensors) | {"no_rope_layer_interval": 4, "use_sliding_window": False}


def _olmo3(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    """Layers with a window turn heads without the scaling that the others have."""
    window = metadata.count(".attention.sliding_window")
    return {"sliding_window": window, "layer_types": _layer_types(metadata, 4)}


def _starcoder2(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    return {
        "use_bias": "blk.0.attn_q.bias" in tensors,
        "norm_epsilon": metadata.number(".attention.layer_norm_epsilon"),
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": metadata.count(".attention.sliding_window", 0, minimum=0) or None,
    }


def _gpt2(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    return {
        "n_embd": metadata.count(".embedding_length"),
        "n_head": metadata.count(".attention.head_count"),
        "n_layer": metadata.count(".block_count"),
        "n_positions": metadata.count(".context_length"),
        "n_inner": metadata.count(".feed_forward_length"),
        "layer_norm_epsilon": metadata.number(".attention.layer_norm_epsilon"),
    }


def _gpt_neox(metadata: Metadata, tensors: Tensors) -> dict[str, Any]:
    head_dim = metadata.count(".embedding_length") // metadata.count(".attention.head_count")
    return {
        "layer_norm_eps": metadata.number(".attention.layer_norm_epsilon"),
        "rotary_pct": metadata.count(".rope.dimension_count", head_dim) / head_dim,
        "use_parallel_residual": metadata.flag(".use_parallel_residual", True),
        "hidden_act": "gelu",
    }


FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM", "llama", _llama, PAIRED),
    "llama of experts": Family("MixtralForCausalLM", "mixtral", _mixtral, PAIRED),
    "qwen2": Family("Qwen2ForCausalLM", "qwen2", _plain),
    "qwen2moe": Family("Qwen2MoeForCausalLM", "qwen2_moe", _qwen_moe(False)),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3", _qwen3),
    "qwen3moe": Family("Qwen3MoeForCausalLM", "qwen3_moe", _qwen_moe(True)),
    "gemma": Family("GemmaForCausalLM", "gemma", _gemma),
    "gemma2": Family("Gemma2ForCausalLM", "gemma2", _gemma2),
    "gemma3": Family("Gemma3ForCausalLM", "gemma3_text", _gemma3),
    "phi3": Family("Phi3ForCausalLM", "phi3", _phi3, FUSED_GATE),
    "granite": Family("GraniteForCausalLM", "granite", _granite, PAIRED),
    "smollm3": Family("SmolLM3ForCausalLM", "smollm3", _smollm3, PAIRED),
    "olmo2": Family("Olmo2ForCausalLM", "olmo2", _plain),
    "olmo2 of windows": Family("Olmo3ForCausalLM", "olmo3", _olmo3),
    "starcoder2": Family("Starcoder2ForCausalLM", "starcoder2", _starcoder2),
    "gpt2": Family("GPT2LMHeadModel", "gpt2", _gpt2, FUSED),
    "gpt-oss": Family("GptOssForCausalLM", "gpt_oss", _gpt_oss, GPT_OSS, {"truncate": False}),
    "gptneox": Family("GPTNeoXForCausalLM", "gpt_neox", _gpt_neox, FUSED),
}
"""By the name in `general.architecture`, with what tells two apart that have the same name there."""


def names_of(architecture: str) -> Names | None:
    """Return the names of a file's tensors for an architecture of `models.architectures`; None: no file has it."""
    names = (family.names for family in FAMILIES.values() if family.architecture == architecture)
    return next(names, None)
