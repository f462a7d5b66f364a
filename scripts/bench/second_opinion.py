"""Logits of tiny random models of recent families, beside those of vLLM's CPU build and of transformers.

    python -m pageant.scripts.bench.second_opinion [--models gpt_oss,...] [--vllm PYTHON] [--json FILE]

PYTHON is vLLM's interpreter, which `python -m pageant.scripts.bench.peers setup vllm` makes. Ends with 1 where vLLM's
log-probabilities differ from ours in float32 by more than 1 % of their root mean square. Where it computes in bfloat16
they may differ by twice what our own differ in it, where that is more. What vLLM refuses is told in its words.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pageant.scripts.bench.peers.environments import HOME, python
from pageant.scripts.bench.quantized.elsewhere import error_max, read_elsewhere, relative_error
from pageant.scripts.bench.quantized.logits import log_probabilities
from pageant.scripts.report import publish, table

__all__ = ["MODELS", "compare", "save"]

TOKENS, VOCABULARY = 48, 512
_DEVIATION = 0.08  # of random weights: large enough that each part of a model counts


class _Model(NamedTuple):
    """A tiny model: transformers' names of its classes, its configuration, and the dtype that vLLM computes in."""

    model: str
    config: str
    options: dict[str, Any]
    dtype: str = "float32"


_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
MODELS = {
    "gpt_oss": _Model(
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "head_dim": 64,
            "num_local_experts": 4,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "deepseek_v2": _Model(
        "DeepseekV2ForCausalLM",
        "DeepseekV2Config",
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "intermediate_size": 128,
            "moe_intermediate_size": 64,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 512,  # of those that its CPU kernels know
            "q_lora_rank": None,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
        },
    ),
    "qwen3_next": _Model(
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {
            "num_hidden_layers": 4,
            "intermediate_size": 128,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
            "head_dim": 64,
            "num_experts": 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
        },
        dtype="bfloat16",  # its CPU kernels of recurrent layers know no other
    ),
}


def save(name: str, folder: Path) -> Any:
    """Write a tiny random model to a folder, in float32. Return transformers' model."""
    import transformers

    made = MODELS[name]
    torch.manual_seed(1)
    config = getattr(transformers, made.config)(**{**_SIZES, **made.options})
    model = getattr(transformers, made.model)(config).float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim >= 2 or "bias" in key or "sinks" in key:
                parameter.normal_(std=_DEVIATION)
    model.save_pretrained(folder)
    return model


def compare(names: list[str], interpreter: Path) -> list[dict[str, Any]]:
    """Return a row for each model: errors of vLLM and of transformers, or vLLM's refusal."""
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="pageant-opinion-") as place:
            model, folder, dtype = save(name, Path(place)), Path(place), MODELS[name].dtype
            token_ids = [(31 * index + 7) % VOCABULARY for index in range(TOKENS)]
            ours = log_probabilities(folder, token_ids)
            with torch.inference_mode():
                theirs = model(torch.tensor([token_ids])).logits[0].log_softmax(-1)
            row: dict[str, Any] = {"model": name, "dtype": dtype, "refusal": None}
            row["transformers"] = relative_error(theirs, ours)
            row["error_max"] = error_max(folder, token_ids, dtype, ours)
            try:
                found = read_elsewhere("vllm", interpreter, folder, token_ids, dtype)
            except RuntimeError as error:
                row |= {"refusal": str(error), "error": None, "same_next": None}
            else:
                same = float((found.argmax(1) == ours.argmax(1)).float().mean())
                row |= {"error": relative_error(found, ours), "same_next": same}
            rows.append(row)
    return rows


def main() -> int:
    """Compare, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--vllm", type=Path, help="vLLM's interpreter")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = compare(options.models.split(","), options.vllm or python("vllm", HOME))
    lines = table(
        [
            "model",
            "dtype of vLLM",
            "vLLM differs by",
            "at most",
            "same next token",
            "transformers differs by",
        ],
        [
            [
                *(row["model"], row["dtype"]),
                "refused" if row["error"] is None else f"{row['error']:.4%}",
                f"{row['error_max']:.2%}",
                "" if row["same_next"] is None else f"{row['same_next']:.1%}",
                f"{row['transformers']:.4%}",
            ]
            for row in rows
        ],
    )
    publish({"rows": rows}, lines, options.json)
    return int(any(row["error"] is not None and row["error"] > row["error_max"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
