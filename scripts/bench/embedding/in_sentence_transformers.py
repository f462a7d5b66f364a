"""Embeds by sentence-transformers, in its own environment; see `speed` for arguments and turns."""

from __future__ import annotations

import sys
import time
from pathlib import Path

INSTALL = [
    ["torch==2.13.0", "transformers==5.23.0", "numpy", "scikit-learn", "scipy"],
    ["--no-deps", "sentence-transformers==5.1.2"],
]


def main() -> None:
    """Embed the texts once for each line of the standard input, and write the seconds that it took."""
    import json

    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer

    folder, path, out, dtype = sys.argv[1:5]
    texts = json.loads(Path(path).read_text())
    model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})
    for _ in sys.stdin:
        began = time.perf_counter()
        found = model.encode(texts, batch_size=32, show_progress_bar=False)
        seconds = time.perf_counter() - began
        np.save(out, np.asarray(found, np.float32))
        print(seconds, flush=True)


if __name__ == "__main__":
    main()
