"""Make the GPTQ and AWQ fixtures: `CUDA_VISIBLE_DEVICES= GPTQMODEL_CPU_WORKERS=4 python gptq.py [NAME...]`.

Needs gptqmodel 7.7.0 in an environment of its own.
"""

from __future__ import annotations

import shutil
import sys
import traceback
from pathlib import Path

import tiny
import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

torch.set_num_threads(2)
GPTQ = {"bits": 4, "group_size": 32, "desc_act": False, "sym": True}
CASES = {
    "gptq": (tiny.qwen2, GPTQ),
    "gptq_v2": (tiny.qwen2, GPTQ | {"format": "gptq_v2"}),
    "gptq_asym": (tiny.llama, GPTQ | {"sym": False}),
    "gptq_act": (tiny.qwen2, GPTQ | {"desc_act": True}),
    "gptq_act_asym": (tiny.llama, GPTQ | {"desc_act": True, "sym": False}),
    "gptq8": (tiny.llama, GPTQ | {"bits": 8, "group_size": -1, "act_group_aware": False}),
    "gptq_dynamic": (
        tiny.llama,
        GPTQ | {"dynamic": {r"-:.*\.0\.self_attn\.v_proj": {}, r"+:.*\.1\.mlp\.down_proj": {"bits": 8}}},
    ),
    "gptq_moe": (tiny.qwen3_moe, GPTQ),
    # The maker searches for clippings of 64 outputs at a time.
    "awq": (
        lambda: tiny.qwen2(hidden_size=128, intermediate_size=192, num_hidden_layers=1),
        {"bits": 4, "group_size": 32, "quant_method": "awq", "format": "gemm", "sym": False},
    ),
}


def make(name: str) -> None:
    recipe, options = CASES[name]
    dense = recipe()
    source, out = Path(f"/tmp/ready-fixtures/{name}-dense"), Path(f"/tmp/ready-fixtures/{name}")
    shutil.rmtree(source, ignore_errors=True)
    dense.save_pretrained(source)
    tiny.tokenizer(source)
    generator = torch.Generator().manual_seed(1)
    texts = [
        {
            "input_ids": torch.randint(3, 120, (64,), generator=generator),
            "attention_mask": torch.ones(64, dtype=torch.long),
        }
        for _ in range(8)
    ]
    is_awq = name.startswith("awq")
    model = GPTQModel.load(str(source), QuantizeConfig(**options), device="cpu", dtype=torch.bfloat16)
    model.quantize(texts, batch_size=1, backend=BACKEND.AUTO if is_awq else BACKEND.TORCH)
    shutil.rmtree(out, ignore_errors=True)
    model.save(str(out))
    backend = BACKEND.TORCH_AWQ if is_awq else BACKEND.TORCH
    dtype = torch.bfloat16 if is_awq else torch.float16  # in which scales are saved
    loaded = GPTQModel.load(str(out), device="cpu", backend=backend, dtype=dtype)
    weights = {}
    for module_name, module in loaded.model.named_modules():
        if hasattr(module, "qweight"):
            weights[f"{module_name}.weight"] = _dequantised(module, is_awq).T.contiguous()
    tiny.keep(out, name, dense, weights)


def _dequantised(module: torch.nn.Module, is_awq: bool) -> torch.Tensor:
    """The maker's own weight [in, out]; of AWQ in float32, whose scales it would round to half precision."""
    if not is_awq:
        return module.dequantize_weight()
    return dequantize_gemm(
        module.qweight, module.qzeros, module.scales.float(), module.bits, module.group_size
    )


for case in sys.argv[1:] or CASES:
    try:
        make(case)
    except Exception as error:
        traceback.print_exc(limit=4)
        print(f"RESULT {case} FAILED {type(error).__name__}: {error!s:.500}")
