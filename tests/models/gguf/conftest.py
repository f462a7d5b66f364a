"""Tiny random models of transformers, written as GGUF files by the `gguf` package as llama.cpp's converter does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from pageant import kernels
from pageant.models import Checkpoint
from pageant.models.gguf.folder import as_folder
from pageant.models.loading import load_decoder

COMMON = {
    "vocab_size": 288,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0},
    **{"high_freq_factor": 4.0, "original_max_position_embeddings": 64},
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
LONG = {
    **{"rope_type": "longrope", "rope_theta": 10000.0},
    **{"short_factor": [1.0 + index / 10 for index in range(8)]},
    **{"long_factor": [1.0 + index for index in range(8)]},
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
WINDOWS = ["sliding_attention", "sliding_attention", "full_attention"]
NORM = re.compile(r"norm|\.ln_")


@dataclass(frozen=True)
class Form:
    """A model of transformers, and what it is for llama.cpp."""

    name: str
    """The class, without ForCausalLM."""
    arch: str
    options: Mapping[str, Any]


FORMS = {
    "llama": Form("Llama", "llama", {"head_dim": 32}),
    "llama_mild": Form("Llama", "llama", {"head_dim": 32, "initializer_range": 0.06}),
    "llama3_tied": Form("Llama", "llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama_biased": Form(
        "Llama", "llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": LINEAR}
    ),
    "mistral": Form("Mistral", "llama", {"head_dim": 32, "sliding_window": None}),
    "mixtral": Form("Mixtral", "llama", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2": Form("Qwen2", "qwen2", {"tie_word_embeddings": True}),
    "qwen2_yarn": Form("Qwen2", "qwen2", {"rope_parameters": YARN}),
    "qwen2_moe": Form("Qwen2Moe", "qwen2moe", EXPERTS | {"shared_expert_intermediate_size": 64}),
    "qwen3": Form("Qwen3", "qwen3", {"head_dim": 32}),
    "qwen3_moe": Form("Qwen3Moe", "qwen3moe", EXPERTS | {"head_dim": 32, "norm_topk_prob": True}),
    "gemma": Form("Gemma", "gemma", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": Form(
        "Gemma2",
        "gemma2",
        {
            **{"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 9, "tie_word_embeddings": True},
            **{"attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0},
        },
    ),
    "gemma3": Form(
        "Gemma3",
        "gemma3",
        {
            **{"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 9, "layer_types": WINDOWS},
            "rope_parameters": {
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
            "tie_word_embeddings": True,
        },
    ),
    "phi3": Form(
        "Phi3",
        "phi3",
        {
            "sliding_window": 13,
            "rope_parameters": {
                **{"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.75}
            },
        },
    ),
    "phi3_long": Form(
        "Phi3", "phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 256 // 4}
    ),
    "granite": Form(
        "Granite",
        "granite",
        {
            **{"embedding_multiplier": 3.0, "attention_multiplier": 0.3},
            **{"residual_multiplier": 0.5, "logits_scaling": 2.0},
        },
    ),
    "smollm3": Form("SmolLM3", "smollm3", {"num_hidden_layers": 5}),
    "olmo2": Form("Olmo2", "olmo2", {}),
    "olmo3": Form("Olmo3", "olmo2", {"num_hidden_layers": 4, "sliding_window": 9}),
    "starcoder2": Form("Starcoder2", "starcoder2", {"sliding_window": None}),
    "gpt2": Form(
        "GPT2",
        "gpt2",
        {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 256, "num_key_value_heads": None},
    ),
    "gpt_neox": Form("GPTNeoX", "gptneox", {"num_key_value_heads": None}),
}
PERMUTED = ("llama", "granite", "smollm3")


@dataclass(frozen=True)
class Written:
    """A model and its GGUF file."""

    path: Path
    model: PreTrainedModel

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(as_folder(self.path))

    def load(self, backend: str = "reference", dtype: str = "float32", **options: Any) -> Any:
        return load_decoder(self.checkpoint(), dtype, kernels=kernels.load(backend), **options)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders that are made from files go with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Written]:
    """Write a form's model as a file: matrices in one type, or in several types by parts of their names."""
    models: dict[str, tuple[PreTrainedModel, Path]] = {}

    def write(name: str, kind: str | Mapping[str, str] = "F32", edit: Any = None) -> Written:
        if name not in models:
            models[name] = _made(name, tmp_path_factory.mktemp(name))
        model, folder = models[name]
        path = tmp_path_factory.mktemp("gguf") / f"{name}.gguf"
        write_file(path, FORMS[name].arch, model, load_file(folder / "model.safetensors"), kind, edit)
        return Written(path, model)

    return write


def _made(name: str, folder: Path) -> tuple[PreTrainedModel, Path]:
    form = FORMS[name]
    head = "LMHeadModel" if form.name == "GPT2" else "ForCausalLM"
    text = "Text" if form.name == "Gemma3" else ""
    torch.manual_seed(len(name))
    options = {key: value for key, value in (COMMON | dict(form.options)).items() if value is not None}
    if form.options.get("sliding_window", 0) is None:
        options["sliding_window"] = None
    config = getattr(transformers, f"{form.name}{text}Config")(**options)
    model = getattr(transformers, f"{form.name}{head}")(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if NORM.search(parameter_name) or parameter_name.endswith("bias"):
            is_weight = parameter_name.endswith("weight")
            parameter.data.normal_(mean=float(is_weight and "gemma" not in name), std=0.2)
    model.save_pretrained(folder)
    return model, folder


def write_file(
    path: Path,
    arch: str,
    model: PreTrainedModel,
    tensors: Mapping[str, Tensor],
    kind: str | Mapping[str, str] = "F32",
    edit: Callable[[Any], None] | None = None,
) -> None:
    """Write a file; `edit` may add to the writer's metadata before that."""
    writer = gguf.GGUFWriter(path, arch)
    config = model.config
    _write_sizes(writer, arch, config)
    _write_tokenizer(writer, config.vocab_size)
    if edit is not None:
        edit(writer)
    for name, array in _converted(arch, config, tensors).items():
        wanted = (
            kind if isinstance(kind, str) else next((k for part, k in kind.items() if part in name), "F32")
        )
        quantised = array.ndim > 1 and "ffn_gate_inp" not in name and "position" not in name
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
    if window and arch in ("gemma2", "gemma3", "phi3", "olmo2"):
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
    for name, tensor in tensors.items():
        if expert := re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name):
            prefix, number, rest = expert.groups()
            stacks.setdefault(f"{prefix}.{rest}", {})[int(number)] = tensor
        else:
            found[name] = tensor
    for name, stack in stacks.items():
        found[name] = torch.stack([stack[number] for number in sorted(stack)])
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
