"""gptqmodel, in its own environment: quantises a model by given tokens, or says its perplexity of others.

    python in_gptqmodel.py quantize MODEL TOKENS.json OUT BITS GROUP_SIZE
    python in_gptqmodel.py perplexity FOLDER TOKENS.json OUT.json

Tokens are lists of token ids, in JSON.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

INSTALL = [
    ["torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0", "setuptools"],
    ["gptqmodel==7.7.0", "--no-build-isolation"],
]


def main() -> None:
    """See the module."""
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "4")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    work, model, tokens, out = sys.argv[1:5]
    sequences: list[list[int]] = json.loads(Path(tokens).read_text())
    if work == "quantize":
        quantize(model, sequences, out, int(sys.argv[5]), int(sys.argv[6]))
    else:
        Path(out).write_text(json.dumps(perplexity(model, sequences)))


def quantize(model: str, sequences: list[list[int]], out: str, bits: int, group_size: int) -> None:
    """Write a symmetric checkpoint of GPTQ's, with the library's defaults otherwise."""
    import torch
    from gptqmodel import BACKEND, GPTQModel, QuantizeConfig

    config = QuantizeConfig(bits=bits, group_size=group_size, desc_act=False, sym=True)
    loaded: Any = GPTQModel.load(model, config, device="cpu", dtype=torch.bfloat16)
    rows = [
        {"input_ids": torch.tensor(one), "attention_mask": torch.ones(len(one), dtype=torch.long)}
        for one in sequences
    ]
    loaded.quantize(rows, batch_size=1, backend=BACKEND.TORCH)
    loaded.save(out)


def perplexity(folder: str, sequences: list[list[int]]) -> float:
    """Return the perplexity of sequences, each alone, as the library computes."""
    import torch
    from gptqmodel import BACKEND, GPTQModel

    loaded: Any = GPTQModel.load(folder, device="cpu", backend=BACKEND.TORCH)
    loss, count = 0.0, 0
    with torch.inference_mode():
        for sequence in sequences:
            ids = torch.tensor([sequence])
            found = loaded.model(ids).logits[0, :-1].float().log_softmax(-1)
            loss -= float(found.gather(1, ids[0, 1:, None]).sum())
            count += len(sequence) - 1
    return math.exp(loss / count)


if __name__ == "__main__":
    main()
