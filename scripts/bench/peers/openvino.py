"""OpenVINO GenAI: its pipeline with continuous batching, on a checkpoint that its own exporter made."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

DISTRIBUTION = "openvino-genai"
INSTALL = [
    ["torch==2.13.0"],
    ["--no-deps", "optimum-intel==2.2.0", "optimum==2.3.0"],
    [
        *("torch==2.13.0", "transformers==5.5.4", "openvino==2026.4.1", "openvino-genai==2026.4.1.0"),
        *("openvino-tokenizers==2026.4.1.0", "nncf", "sentencepiece", "huggingface_hub<1.22", "requests"),
    ],
]
CONVERTED = (None, "int8", "int4")
FORMATS = {"none": "fp16", "int8": "int8", "int4": "int4"}  # of the exported weights
BATCHED_TOKENS = 2048


def load(job: dict[str, Any]) -> Callable[[list[list[int]], int], int]:
    """Load a model on the CPU, with what suits one stream or many: a pipeline for each, made when it is first needed.

    One stream is best with the default budget of tokens and, where weights are quantised, in float32; many are
    best with a larger budget, in bfloat16. Where the processor multiplies none, all is in float32, since it takes
    nothing else.
    """
    import numpy as np
    import openvino
    import openvino_genai

    has_bfloat16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    one_by_one = any(len(work["prompts"]) == 1 for work in job["workloads"].values())

    @functools.cache
    def pipeline(single: bool) -> Any:
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.cache_size = job["kv_gib"]
        scheduling.enable_prefix_caching = False
        if not single:
            scheduling.max_num_batched_tokens = BATCHED_TOKENS
        precise = not has_bfloat16 or (single and job["quantization"] is not None)
        precision = "f32" if precise else "bf16"
        properties = {"INFERENCE_PRECISION_HINT": precision, **job["settings"]}
        return openvino_genai.ContinuousBatchingPipeline(job["model"], scheduling, "CPU", properties)

    def generate(prompts: list[list[int]], tokens: int) -> int:
        config = openvino_genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        tensors = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        outputs = pipeline(one_by_one and len(prompts) == 1).generate(tensors, [config] * len(prompts))
        return sum(len(output.m_generation_ids[0]) for output in outputs)

    return generate


def convert(model: Path, quantization: str, folder: Path) -> None:
    """Convert a checkpoint by `optimum-cli`, with its own choices for each format."""
    subprocess.run(
        [
            *(str(Path(sys.executable).parent / "optimum-cli"), "export", "openvino", "-m", str(model)),
            *("--task", "text-generation-with-past", "--weight-format", FORMATS[quantization], str(folder)),
        ],
        check=True,
    )
