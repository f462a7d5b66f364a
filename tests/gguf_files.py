"""GGUF files written by the `gguf` package, of checkpoints of transformers, as llama.cpp's converter writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

__all__ = ["byte_level_metadata", "write_file"]

PERMUTED = ("llama", "granite", "smollm3")


def write_file(
    path: Path,
    arch: str,
    config: Any,
    tensors: Mapping[str, Tensor],
    kind: str | Mapping[str, str] = "F32",
    edit: Callable[[Any], None] | None = None,
) -> None:
    """Write a file of tensors by transformers' names; `edit` may change the writer's metadata before that."""
    writer = gguf.GGUFWriter(path, arch)
    _write_sizes(writer, arch, config)
    _write_tokenizer(writer, config.vocab_size)
    if edit is not None:
        edit(writer)
    for name, array in _converted(arch, config, tensors).items():
        wanted = (
            kind if isinstance(kind, str) else next((k for part, k in kind.items() if part in name), "F32")
        )
        is_matrix = array.ndim > 1 and not name.endswith(".bias")
        quantised = is_matrix and "ffn_gate_inp" not in name and "position" not in name
        used = gguf.GGMLQuantizationType[wanted if quantised else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(array, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_tokenizer(writer: Any, count: int) -> None:
    """Byte-level tokens with two merges, and three control tokens."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    tokens = ["<|pad|>", "<|end|>", "<|begin|>", *letters, "th", "the"]
    tokens += [f"<|unused{index}|>" for index in range(count - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(letters) + 2), *[5] * count][:count])
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)


def _write_sizes(writer: Any, arch: str, config: Any) -> None:
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size if arch != "gpt2" else 4 * config.hidden_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or heads)
    if getattr(config, "head_dim", None):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if (eps := getattr(config, "rms_norm_eps", None)) is not None:
        writer.add_layer_norm_rms_eps(eps)
    for key in ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"):
        if arch in ("gpt2", "gptneox", "starcoder2") and getattr(config, key, None) is not None:
            writer.add_layer_norm_eps(getattr(config, key))
    _write_rotation(writer, config, head_dim)
    _write_own(writer, arch, config)


def _write_rotation(writer: Any, config: Any, head_dim: int) -> None:
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        return
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))


def _write_own(writer: Any, arch: str, config: Any) -> None:
    window = getattr(config, "sliding_window", None)
    if window and arch in ("gemma2", "gemma3", "phi3", "olmo2", "gpt-oss"):
        writer.add_sliding_window(window)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch in ("gemma3", "olmo2") and window:
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if arch == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if arch == "gptneox":
        writer.add_parallel_residual(config.use_parallel_residual)
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)


def _converted(arch: str, config: Any, tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The tensors as llama.cpp has them, float32, by names of the `gguf` package's own table."""
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    found: dict[str, np.ndarray] = {}
    for name, tensor in _stacked(tensors).items():
        ours = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert ours is not None, name
        suffix = "" if ours.endswith((".weight", ".bias")) else ".weight"
        found[ours + suffix] = _as_written(arch, config, name, tensor.float().numpy())
    if factors := _divisors(config):
        found |= {name: np.array(numbers, np.float32) for name, numbers in factors.items()}
    return found


def _stacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Experts' matrices in stacks, by the names that llama.cpp's converter makes up for them."""
    found: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, tensor in _taken_apart(tensors).items():
        if expert := re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name):
            prefix, number, rest = expert.groups()
            stacks.setdefault(f"{prefix}.{rest}", {})[int(number)] = tensor
        else:
            found[name] = tensor
    for name, stack in stacks.items():
        found[name] = torch.stack([stack[number] for number in sorted(stack)])
    return found


def _taken_apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """gpt-oss's stacks [experts, inputs, outputs] as [experts, outputs, inputs], gates and ups apart."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stack = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj(_bias)?", name)
        if stack is None:
            found[name] = tensor
            continue
        prefix, module, bias = stack.groups()
        kind, rows = ("bias", tensor) if bias else ("weight", tensor.transpose(1, 2))
        parts = {"down": rows} if module == "down" else {"gate": rows[:, ::2], "up": rows[:, 1::2]}
        found |= {f"{prefix}.{part}_proj.{kind}": one for part, one in parts.items()}
    return found


def _as_written(arch: str, config: Any, name: str, array: np.ndarray) -> np.ndarray:
    heads = config.num_attention_heads
    if arch in PERMUTED and re.search(r"\.(q|k)_proj\.", name):
        array = _in_pairs(array, heads if ".q_proj." in name else config.num_key_value_heads)
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        array = array + 1
    if arch == "gpt2" and array.ndim == 2 and re.search(r"\.(c_attn|c_proj|c_fc)\.", name):
        array = array.T
    if arch == "gptneox" and ".query_key_value." in name:
        split = array.reshape(heads, 3, -1, *array.shape[1:])
        array = np.concatenate([split[:, part].reshape(-1, *array.shape[1:]) for part in range(3)])
    if name.endswith("shared_expert_gate.weight"):
        array = array[0]
    return np.ascontiguousarray(array)


def _in_pairs(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head by turns from its first half and its second, as llama.cpp rotates them."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


def _divisors(config: Any) -> dict[str, list[float]]:
    """Tensors of divisors of frequencies, which files have for the scalings of Llama 3 and Phi-3."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{name}.weight": rope[f"{name}_factor"] for name in ("long", "short")}
    if rope.get("rope_type") != "llama3":
        return {}
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    divisors = []
    for index in range(0, size, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / size)
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return {"rope_freqs.weight": divisors}


def byte_level_metadata(content: Mapping[str, Any], pre: str) -> Callable[[Any], None]:
    """Return what writes a tokenizer into a file's metadata, given what its tokenizer.json holds."""
    vocab = sorted(content["model"]["vocab"].items(), key=lambda entry: entry[1])
    special = {token["content"] for token in content["added_tokens"]}

    def edit(writer: Any) -> None:
        for key in ("tokens", "token_type", "merges", "pre"):
            writer.kv_data[0].pop(f"tokenizer.ggml.{key}", None)
        merges = [
            merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]
        ]
        writer.add_token_list([token for token, _ in vocab])
        writer.add_token_types([3 if token in special else 1 for token, _ in vocab])
        writer.add_token_merges(merges)
        writer.add_tokenizer_pre(pre)
        writer.add_add_bos_token(pre == "llama-bpe")

    return edit
