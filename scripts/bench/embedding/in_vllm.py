"""Embeds by vLLM's CPU build, in its own environment; see `speed` for arguments and turns."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Embed the texts once for each line of the standard input, and write the seconds that it took."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no answer
    import json

    import numpy as np
    from vllm import LLM

    folder, path, out, dtype = sys.argv[1:5]
    texts = json.loads(Path(path).read_text())
    llm = LLM(model=folder, runner="pooling", dtype=dtype)
    for _ in sys.stdin:
        began = time.perf_counter()
        outputs = llm.embed(texts, tokenization_kwargs={"truncate_prompt_tokens": -1}, use_tqdm=False)
        seconds = time.perf_counter() - began
        np.save(out, np.asarray([output.outputs.embedding for output in outputs], np.float32))
        print(seconds, file=answers, flush=True)


if __name__ == "__main__":
    main()
