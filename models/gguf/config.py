"""config.json and generation_config.json of a GGUF file's model, in transformers' words. Knows no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from pageant.models.errors import CheckpointError
from pageant.models.gguf.families import FAMILIES, Family
from pageant.models.gguf.metadata import Metadata
from pageant.models.gguf.types import FLOATS
from pageant.models.gguf.vocabulary import Vocabulary
from pageant.models.tensor_files import TensorInfo, read_values

__all__ = ["find_family", "make_config", "make_generation_config"]

_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Keys of `general.sampling`, and those of generation_config.json."""
_TOKENS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}
_SCALINGS = ("none", "linear", "yarn", "longrope")


def find_family(metadata: Metadata) -> Family:
    """Return the family of a file's model. Raises CheckpointError for one that is not known here."""
    name = metadata.architecture
    if name == "llama" and metadata.count(".expert_count", 0, minimum=0):
        name = "llama of experts"
    elif name == "olmo2" and ".attention.sliding_window" in metadata:
        name = "olmo2 of windows"
    family = FAMILIES.get(name)
    if family is None:
        known = ", ".join(name for name in FAMILIES if " " not in name)
        raise metadata.wrong(
            "general.architecture", repr(name), f"one of {known}", "Use a checkpoint of safetensors."
        )
    return family


def make_config(metadata: Metadata, tensors: Mapping[str, TensorInfo], family: Family) -> dict[str, Any]:
    """Return a config.json."""
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise metadata.missing("token_embd.weight", "the tensor of embeddings")
    config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": metadata.count(".context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
        **_sizes(metadata),
        **_rotation(metadata, tensors, family),
        **{ours: metadata.count(key, minimum=0) for ours, key in _TOKENS.items() if key in metadata},
        **_precision(tensors),
    }
    if ".attention.layer_norm_rms_epsilon" in metadata:
        config["rms_norm_eps"] = metadata.number(".attention.layer_norm_rms_epsilon")
    return config | family.own(metadata, tensors)


def _sizes(metadata: Metadata) -> dict[str, Any]:
    hidden, heads = metadata.count(".embedding_length"), metadata.count(".attention.head_count")
    head_dim = metadata.count(".attention.key_length", max(1, hidden // heads))
    if metadata.count(".attention.value_length", head_dim) != head_dim:
        found = str(metadata.count(".attention.value_length"))
        raise metadata.wrong(".attention.value_length", found, f"{head_dim}, the size of keys")
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": metadata.count(".block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.count(".attention.head_count_kv", heads),
        "head_dim": head_dim,
    }
    if ".feed_forward_length" in metadata:
        sizes["intermediate_size"] = metadata.count(".feed_forward_length")
    return sizes


def _precision(tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """The dtype to compute in, and what is quantised: matrices decide, since norms are always in float32."""
    kinds = Counter(info.dtype for info in tensors.values() if len(info.shape) == 2)
    dtype = "bfloat16"
    if set(kinds) <= {"F32"}:
        dtype = "float32"
    elif set(kinds) <= {"F16", "F32"}:
        dtype = "float16"
    quantised = {kind: count for kind, count in kinds.most_common() if kind not in FLOATS}
    if not quantised:
        return {"dtype": dtype}
    return {"dtype": dtype, "quantization_config": {"quant_method": "gguf", "types": list(quantised)}}


def _rotation(metadata: Metadata, tensors: Mapping[str, TensorInfo], family: Family) -> dict[str, Any]:
    found: dict[str, Any] = {"rope_theta": metadata.number(".rope.freq_base", 10_000.0)}
    kind = metadata.text(".rope.scaling.type", "none")
    if kind not in _SCALINGS:
        raise metadata.wrong(".rope.scaling.type", repr(kind), f"one of {', '.join(_SCALINGS)}")
    original = metadata.count(".rope.scaling.original_context_length", metadata.count(".context_length"))
    long, short = (_factors(tensors, f"rope_factors_{name}.weight") for name in ("long", "short"))
    divisors = _factors(tensors, "rope_freqs.weight")
    scaling: dict[str, Any] = {"rope_type": kind, "original_max_position_embeddings": original}
    if long is not None and short is not None:
        scaling |= {"rope_type": "longrope", "long_factor": long, "short_factor": short}
        if ".rope.scaling.attn_factor" in metadata:
            scaling["attention_factor"] = metadata.number(".rope.scaling.attn_factor")
        # Without it, the factor follows from how far the context was extended.
        scaling["factor"] = max(1.0, metadata.count(".context_length") / original)
    elif divisors is not None and any(divisor != 1 for divisor in divisors):
        # A divisor for each frequency, worked out by the writer from Llama 3's scaling.
        scaling |= {"rope_type": "longrope", "long_factor": divisors, "short_factor": divisors}
        scaling |= {"attention_factor": 1.0, "factor": 1.0}
    elif kind == "longrope":
        raise metadata.missing("rope_factors_long.weight", "the tensor of divisors of frequencies")
    elif kind == "none":
        factor = metadata.number(".rope.scale_linear", 1.0)
        if factor == 1:
            return found
        scaling = {"rope_type": "linear", "factor": factor}
    else:
        scaling["factor"] = metadata.number(".rope.scaling.factor")
        if kind == "yarn":
            scaling |= {**_yarn(metadata, scaling["factor"]), **family.yarn}
    return found | {"rope_scaling": scaling}


def _yarn(metadata: Metadata, factor: float) -> dict[str, Any]:
    keys = {"beta_fast": ".rope.scaling.yarn_beta_fast", "beta_slow": ".rope.scaling.yarn_beta_slow"}
    found = {ours: metadata.number(key) for ours, key in keys.items() if key in metadata}
    if ".rope.scaling.attn_factor" in metadata:  # a multiple of the one that YaRN has anyway
        multiple = metadata.number(".rope.scaling.attn_factor")
        found["attention_factor"] = multiple * (1 + 0.1 * math.log(max(1.0, factor)))
    return found


def _factors(tensors: Mapping[str, TensorInfo], name: str) -> list[float] | None:
    """The numbers of a small tensor; None where there is no such one."""
    info = tensors.get(name)
    if info is None:
        return None
    if info.dtype != "F32" or len(info.shape) != 1:
        found = f"{name} has shape {list(info.shape)} of {info.dtype}"
        raise CheckpointError(info.file, found, "a vector of F32", "Convert the model anew.")
    numbers = np.asarray(read_values(info))
    if not np.isfinite(numbers).all() or not (numbers > 0).all():
        raise CheckpointError(
            info.file, f"{name} has numbers that are not above 0", "divisors", "Convert it anew."
        )
    return [float(number) for number in numbers]


def make_generation_config(metadata: Metadata, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """Return a generation_config.json: the tokens that end an answer, and sampling that the file recommends."""
    found: dict[str, Any] = {}
    if vocabulary is not None and vocabulary.end_ids:
        found["eos_token_id"] = list(vocabulary.end_ids)
    for theirs, ours in _SAMPLING.items():
        value = metadata.get(f"general.sampling.{theirs}")
        if value is not None:
            found[ours] = float(f"{value:.7g}") if isinstance(value, float) else value
    return found
