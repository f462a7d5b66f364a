"""Pageant itself, run as its peers are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

DISTRIBUTION = None  # it may run from its sources
INSTALL: list[list[str]] = []


def load(job: dict[str, Any]) -> Callable[[list[list[int]], int], int]:
    """`LLM`, with prefix caching off as it is for the peers."""
    from pageant import LLM, SamplingParams

    memory = f"{job['kv_gib']}GiB"
    longest = json.loads((Path(job["model"]) / "config.json").read_text()).get(
        "max_position_embeddings", 4096
    )
    defaults = {
        "enable_prefix_caching": False,
        "max_model_len": min(4096, longest),
        "kv_cache_memory": memory,
    }
    settings = {**defaults, **job["settings"]}
    if job["quantization"] is not None:
        settings["quantization"] = job["quantization"]
    llm = LLM(job["model"], progress=False, **settings)

    def generate(prompts: list[list[int]], tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        return sum(len(one.outputs[0].token_ids) for one in llm.generate(prompts, params, progress=False))

    return generate
