"""Small random models for the recipes, and the folders that they write. Run by makers' environments, not the tests'."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

FIXTURES = Path(__file__).parent.parent / "fixtures"
IDS = torch.arange(3, 23)[None]
SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.06,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def qwen2(seed: int = 0, **changes: object) -> transformers.PreTrainedModel:
    """Grouped heads, biases on queries, keys and values, and a tied head; 96 outputs of gate and up."""
    return _made(
        transformers.Qwen2ForCausalLM, transformers.Qwen2Config, seed, {"tie_word_embeddings": True} | changes
    )


def llama(seed: int = 0, **changes: object) -> transformers.PreTrainedModel:
    """A head of its own."""
    return _made(
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig,
        seed,
        {"tie_word_embeddings": False} | changes,
    )


def qwen3_moe(seed: int = 0, **changes: object) -> transformers.PreTrainedModel:
    """Four experts, of which a token goes to two."""
    sizes = {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    sizes |= {"tie_word_embeddings": False, "norm_topk_prob": True}
    return _made(transformers.Qwen3MoeForCausalLM, transformers.Qwen3MoeConfig, seed, sizes | changes)


def _made(
    model_class: type, config_class: type, seed: int, changes: Mapping[str, object]
) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    model = model_class(config_class(**(SIZES | changes))).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(std=0.2)
    return model.to(torch.bfloat16)


def tokenizer(folder: Path) -> None:
    """A word for each id: some makers do not start without one."""
    from tokenizers import Tokenizer, models

    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {chr(i + 33): i + 3 for i in range(120)}
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        **{"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<pad>"},
    )
    made.save_pretrained(folder)


@torch.inference_mode()
def keep(
    made: Path, name: str, dense: transformers.PreTrainedModel, weights: Mapping[str, torch.Tensor]
) -> None:
    """Commit a checkpoint's configuration and tensors, and the logits of its maker's dequantised weights in float32.

    weights: by the names of the dense model, those that were quantised.
    """
    out = FIXTURES / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for file in ("config.json", "quantize_config.json", "hf_quant_config.json", "model.safetensors"):
        if (made / file).is_file():
            shutil.copy(made / file, out / file)
    model = type(dense)(dense.config).eval()  # a model that was bfloat16 has its rotary table rounded
    saved = load_file(made / "model.safetensors")
    state = dict(model.state_dict())
    state |= {name: tensor.float() for name, tensor in saved.items() if name in state and name not in weights}
    state |= {name: tensor.float() for name, tensor in weights.items()}
    model.load_state_dict(state, strict=True)
    logits = model(IDS).logits[0].numpy()
    np.savez_compressed(
        out / "expected.npz",
        ids=IDS[0].numpy(),
        logits=logits.astype(np.float32),
        weight=next(iter(weights.values())).float().numpy().astype(np.float32),
        name=np.array(next(iter(weights))),
    )
    size = sum(file.stat().st_size for file in out.iterdir())
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    print(
        f"RESULT {name}: {size} bytes, logits' rms {np.sqrt((logits**2).mean()):.2f}, {json.dumps(config)[:300]}"
    )
