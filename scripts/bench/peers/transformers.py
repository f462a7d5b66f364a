"""transformers' `generate`: one batch, padded on the left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DISTRIBUTION = "transformers"
INSTALL: list[list[str]] = []  # our own environment has it
QUANTIZATIONS = (None,)


def load(job: dict[str, Any]) -> Callable[[list[list[int]], int], int]:
    """Load a model in the checkpoint's dtype."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(job["model"], dtype="auto")
    model.eval()

    def generate(prompts: list[list[int]], tokens: int) -> int:
        longest = max(map(len, prompts))
        input_ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            output = model.generate(
                input_ids,
                attention_mask=mask,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return int(output.shape[1] - longest) * len(prompts)

    return generate
