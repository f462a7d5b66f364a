"""Checkpoints that `pageant quantize` writes, read by transformers and by vLLM's CPU build.

    python -m pageant.scripts.bench.quantized.elsewhere [MODEL] [--transformers PYTHON] [--vllm PYTHON]
        [--schemes w4a16,w8a8] [--json FILE]

PYTHON is an interpreter of an environment that has the library; without one, that reader is left out. The one for
transformers needs what `in_transformers.INSTALL` lists, and vLLM's is that of `pageant.scripts.bench.peers setup vllm`.
Each scheme's logits are compared with those of this project in float32. Ends with 1 where they differ by more than 1 %
of their root mean square. A reader that computes in bfloat16 may differ by what that rounds: by twice the difference of
our own logits in bfloat16, where that is more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pageant.models.quantizing.quantizer import quantize
from pageant.models.quantizing.schemes import SCHEMES
from pageant.scripts.bench.foreign import run_foreign
from pageant.scripts.bench.quantized import in_transformers
from pageant.scripts.bench.quantized.logits import log_probabilities
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.report import publish, table

ERROR_MAX = 0.01
TOKENS = 48
READERS: dict[str, tuple[str, ...]] = {
    "transformers": tuple(SCHEMES),
    # Its CPU build has no product of 8-bit weights with float activations.
    "vllm": ("w4a16", "w8a8", "int4"),
}
_DTYPES = {("vllm", "w8a8"): "float32", ("vllm", "w4a16"): "bfloat16", ("vllm", "int4"): "bfloat16"}
"""The widest dtype in which a reader multiplies such weights; float32 where nothing is said."""


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the root mean square of a difference, as a share of that of the logits.

    found, expected: float32 [T, vocab_size], log-probabilities. A row's mean says nothing, and is taken out.
    """
    found, expected = (some - some.mean(1, keepdim=True) for some in (found, expected))
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def read_elsewhere(reader: str, python: Path, folder: Path, token_ids: list[int], dtype: str) -> Tensor:
    """Return what another library computes of a checkpoint, float32 [T, vocab_size]; raises as `run_foreign`."""
    with tempfile.TemporaryDirectory(prefix="pageant-elsewhere-") as place:
        ids, out = Path(place) / "ids.json", Path(place) / "found.npy"
        ids.write_text(json.dumps(token_ids))
        run_foreign(Path(__file__).with_name(f"in_{reader}.py"), python, folder, ids, out, dtype)
        return torch.from_numpy(np.load(out))


def compare(model: Path, schemes: list[str], pythons: dict[str, Path]) -> list[dict[str, Any]]:
    """Return a row for each scheme and reader: the error, and the share of tokens whose most probable next agrees."""
    rows = []
    for scheme in schemes:
        with tempfile.TemporaryDirectory(prefix="pageant-elsewhere-") as place:
            folder = quantize(model, Path(place) / scheme, scheme).path
            for reader, python in pythons.items():
                if scheme not in READERS[reader]:
                    continue
                dtype = _DTYPES.get((reader, scheme), "float32")
                vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
                token_ids = [(31 * index + 7) % vocab_size for index in range(TOKENS)]
                found = read_elsewhere(reader, python, folder, token_ids, dtype)
                rounds = reader == "vllm" and SCHEMES[scheme].rounds_inputs
                expected = log_probabilities(folder, token_ids, rounds_inputs=rounds)
                agree = float((found.argmax(1) == expected.argmax(1)).float().mean())
                rows.append(
                    {
                        "scheme": scheme,
                        "reader": reader,
                        "dtype": dtype,
                        "error": relative_error(found, expected),
                        "error_max": error_max(folder, token_ids, dtype, expected),
                        "same_next": agree,
                    }
                )
    return rows


def error_max(folder: Path, token_ids: list[int], dtype: str, expected: Tensor) -> float:
    """The error that a reader may have; expected: float32 [T, vocab_size], of our own in float32."""
    if dtype == "float32":
        return ERROR_MAX
    return max(ERROR_MAX, 2 * relative_error(log_probabilities(folder, token_ids, dtype=dtype), expected))


def main() -> int:
    """Compare, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, default=Path(DEMO_MODEL))
    parser.add_argument("--transformers", type=Path, help=f"has {in_transformers.INSTALL}")
    parser.add_argument("--vllm", type=Path)
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    pythons = {name: getattr(options, name) for name in READERS if getattr(options, name) is not None}
    if not pythons:
        parser.error("name the interpreter of at least one reader")
    rows = compare(options.model, options.schemes.split(","), pythons)
    lines = table(
        ["scheme", "reader", "dtype", "error", "at most", "same next token"],
        [
            [
                *(row["scheme"], row["reader"], row["dtype"], f"{row['error']:.2%}"),
                *(f"{row['error_max']:.2%}", f"{row['same_next']:.1%}"),
            ]
            for row in rows
        ],
    )
    publish({"model": options.model.name, "rows": rows}, lines, options.json)
    return int(any(row["error"] > row["error_max"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
