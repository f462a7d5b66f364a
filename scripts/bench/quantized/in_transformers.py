"""Log-probabilities by transformers, in its own environment: python in_transformers.py FOLDER IDS.json OUT.npy DTYPE.

Weights are dequantised, so that activations stay as they are; compressed-tensors would round them, too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

INSTALL = [
    ["torch==2.13.0", "transformers==5.23.0", "numpy", "accelerate==1.15.0"],
    ["--no-deps", "compressed-tensors==0.20.0"],
    ["loguru", "frozendict", "pydantic>=2"],
]


def main() -> None:
    """Write float32 [T, vocab_size]."""
    import numpy as np
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, CompressedTensorsConfig

    folder, ids, out, dtype = sys.argv[1:5]
    options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if getattr(AutoConfig.from_pretrained(folder), "quantization_config", None) is not None:
        options["quantization_config"] = CompressedTensorsConfig(dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, **options)
    with torch.inference_mode():
        logits = model(torch.tensor([json.loads(Path(ids).read_text())])).logits[0].float()
    np.save(out, logits.log_softmax(-1).numpy())


if __name__ == "__main__":
    main()
