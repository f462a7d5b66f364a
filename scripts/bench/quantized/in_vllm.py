"""Log-probabilities by vLLM, in its own environment: python in_vllm.py FOLDER IDS.json OUT.npy DTYPE."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Write float32 [T, vocab_size]; the last row is that of the first token that would follow."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    import numpy as np
    from vllm import LLM, SamplingParams

    folder, path, out, dtype = sys.argv[1:5]
    ids: list[int] = json.loads(Path(path).read_text())
    llm = LLM(
        model=folder,
        dtype=dtype,
        max_model_len=512,
        max_logprobs=-1,
        enforce_eager=True,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1, logprobs=-1, detokenize=False)
    (output,) = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
    rows: list[Any] = [*output.prompt_logprobs[1:], output.outputs[0].logprobs[0]]
    found = np.empty((len(ids), len(rows[0])), np.float32)
    for row, entries in zip(found, rows, strict=True):
        for token, entry in entries.items():
            row[token] = entry.logprob
    np.save(out, found)


if __name__ == "__main__":
    main()
