"""Memory during loading: the process never holds a quantised model twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pageant.models import Checkpoint

MEASURE = """
import itertools, sys
from pageant import kernels
from pageant.models import Checkpoint, loading
from pageant.models.loading import load_decoder
from pageant.models.placing import as_rows
from pageant.models.ready import filling

def own_bytes():
    total, counts = 0, False
    for line in open("/proc/self/smaps"):
        first, *rest = line.split()
        if not first.endswith(":"):  # a mapping, with its file
            counts = len(rest) < 5 or rest[4].startswith("[") or rest[4].endswith(".safetensors")
        elif first == "Rss:" and counts:
            total += 1024 * int(rest[0])
    return total

load_decoder(Checkpoint(sys.argv[1]), kernels=kernels.load())  # so that libraries are there
loading.MAPPED_BYTES, filling._AT_A_TIME = 4_000_000, 1 << 19
before, peak, calls = own_bytes(), [], itertools.count()

def look(*_):
    if next(calls) % 9 == 8:
        peak.append(own_bytes())

decoder = load_decoder(Checkpoint(sys.argv[2]), kernels=kernels.load(), progress=look)
print(decoder.num_bytes, max(peak) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_memory_never_holds_the_model_twice(made: Callable[[str], Any], tmp_path: Path) -> None:
    """A model whose weights are many times the piece of them that is decoded at once."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "vocab_size": 64}
    config = made("gptq").config | sizes | {"num_attention_heads": 8, "num_key_value_heads": 8}
    config |= {"layer_types": ["full_attention"] * 12, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, place in Checkpoint(tmp_path).decoder()[1].items():
        module, (outputs, inputs) = name.removesuffix(".weight"), (*place.shape, 0)[:2]
        if not module.endswith("_proj"):
            tensors[name] = torch.ones(place.shape, dtype=torch.bfloat16)
            continue
        tensors[f"{module}.qweight"] = torch.zeros(inputs // 8, outputs, dtype=torch.int32)
        tensors[f"{module}.qzeros"] = torch.full((inputs // 32, outputs // 8), 0x77777777, dtype=torch.int32)
        tensors[f"{module}.scales"] = torch.ones(inputs // 32, outputs, dtype=torch.float16)
    save_file(tensors, tmp_path / "model.safetensors")
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(made("gptq").path), str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
    )
    weights, grown = map(int, result.stdout.split())
    assert weights > 25_000_000, "the model is meant to be large beside a piece"
    assert grown < 1.4 * weights + 5_000_000
