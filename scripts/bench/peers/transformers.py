"""transformers' `generate` on a workload, as one padded batch in bfloat16: prints one JSON line."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from pageant.scripts.bench.throughput import summary
from pageant.scripts.bench.workloads import workload


def main(model_path: str, name: str, runs: int) -> None:
    """Measures as our own engine is measured: one token to warm up, then `runs` runs."""
    began = time.perf_counter()
    work = workload(name)
    prompts = work.prompts()
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16)
    model.eval()
    longest = max(map(len, prompts))
    input_ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])

    def generate(rows: int, tokens: int) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                input_ids[:rows],
                attention_mask=mask[:rows],
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return time.perf_counter() - start

    generate(1, 1)
    ready = time.perf_counter() - began
    seconds = [generate(work.requests, work.output_tokens) for _ in range(runs)]
    tokens = work.requests * work.output_tokens
    print(json.dumps(summary(name, seconds, tokens, sum(map(len, prompts)), ready)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
