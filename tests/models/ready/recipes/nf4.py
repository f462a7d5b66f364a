"""Make the bitsandbytes fixtures: `python nf4.py` with bitsandbytes 0.50 and accelerate installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import bitsandbytes.functional as bnb
import tiny
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

# On a CPU bitsandbytes dequantises wrongly where rows are no whole number of blocks of 64: its weights of 96 inputs are
# off by a quarter, though what it saved is right. So all rows here are whole blocks.
CASES = {
    "bnb_nf4": (tiny.qwen2, {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "bnb_nested": (
        tiny.llama,
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    ),
    "bnb_fp4": (tiny.llama, {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}),
    "bnb_int8": (tiny.qwen2, {"load_in_8bit": True}),
}

for name, (recipe, options) in CASES.items():
    dense = recipe(intermediate_size=128)
    source, out = Path(f"/tmp/ready-fixtures/{name}-dense"), Path(f"/tmp/ready-fixtures/{name}")
    for folder in (source, out):
        shutil.rmtree(folder, ignore_errors=True)
    dense.save_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, quantization_config=BitsAndBytesConfig(**options), device_map="cpu"
    )
    model.save_pretrained(out)
    weights = {}
    for module_name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if getattr(weight, "quant_state", None) is not None:
            weights[f"{module_name}.weight"] = bnb.dequantize_4bit(weight.data, weight.quant_state)
        elif getattr(weight, "SCB", None) is not None:
            weights[f"{module_name}.weight"] = weight.data.float() * weight.SCB[:, None] / 127
    assert len(weights) == 14, len(weights)
    tiny.keep(out, name, dense, weights)
