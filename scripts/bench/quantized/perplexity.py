"""Perplexity of held-out text: original, rounded to the nearest, by our GPTQ, and by gptqmodel's.

    python -m pageant.scripts.bench.quantized.perplexity MODEL --train FILE --held-out FILE
        [--gptqmodel PYTHON] [--scheme w4a16] [--group-size N] [--sequences 128] [--length 512] [--json FILE]

Both makers see the same tokens. gptqmodel's file is read by us and, in its own environment (`in_gptqmodel.INSTALL`), by
itself. Ends with 1 where our file is worse than gptqmodel's by more than 1 %, or where our reading of that file is off
its maker's by more than 0.5 %. Text that a model was trained on serves where it is the same for all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pageant.models import Checkpoint
from pageant.models.quantizing.calibration import Calibration, read_sequences
from pageant.models.quantizing.quantizer import quantize
from pageant.models.quantizing.schemes import SCHEMES
from pageant.scripts.bench.quantized import in_gptqmodel
from pageant.scripts.bench.quantized.logits import perplexity
from pageant.scripts.report import publish, table

MAKER_MAX = 0.01
"""Our file may be so much worse than gptqmodel's."""
READING_MAX = 0.005
"""Our perplexity of gptqmodel's file may be off its own by so much."""
HERE = Path(__file__).parent


def measure(options: argparse.Namespace, place: Path) -> dict[str, float]:
    """Return perplexities by name; files go into a folder."""
    model = Checkpoint(options.model)
    vocab_size = model.spec().vocab_size
    seen = Calibration(options.train, options.sequences, options.length)
    held_out = read_sequences(
        Calibration(options.held_out, options.held_out_sequences, options.length), model.path, vocab_size
    )
    held_out = [sequence for sequence in held_out if len(sequence) > 1]
    found = {"original": _said("original", perplexity(model.path, held_out))}
    files = {"nearest": None, "gptq": seen}
    group_size = {"group_size": options.group_size}
    for name, calibrate in files.items():
        written = quantize(model.path, place / name, options.scheme, calibrate=calibrate, **group_size)
        print(written.description, file=sys.stderr)
        found[name] = _said(name, perplexity(written.path, held_out))
        size = written.scheme.group_size
    if options.gptqmodel is not None:
        sequences = read_sequences(seen, model.path, vocab_size)
        tokens, others, out = (place / f"{name}.json" for name in ("tokens", "held-out", "perplexity"))
        tokens.write_text(json.dumps(sequences))
        others.write_text(json.dumps(held_out))
        theirs, bits = place / "gptqmodel", str(SCHEMES[options.scheme].bits)
        _run(options.gptqmodel, "quantize", model.path, tokens, theirs, bits, -1 if size is None else size)
        found["gptqmodel"] = _said("gptqmodel", perplexity(theirs, held_out))
        _run(options.gptqmodel, "perplexity", theirs, others, out)
        found["gptqmodel by itself"] = _said("gptqmodel by itself", json.loads(out.read_text()))
    return found


def _said(name: str, value: float) -> float:
    print(f"{name}: {value:.4f}", file=sys.stderr, flush=True)
    return value


def _run(python: Path, *arguments: object) -> None:
    variables = {**os.environ, "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"}
    variables.pop("PYTHONPATH", None)
    command = [str(python), str(HERE / "in_gptqmodel.py"), *map(str, arguments)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"gptqmodel ended with {done.returncode}: {done.stderr[-2000:]}")


def verdicts(found: dict[str, float]) -> dict[str, float]:
    """Return how much worse our file is than gptqmodel's, and how far our reading of that is from its own."""
    if "gptqmodel" not in found:
        return {}
    return {
        "worse than gptqmodel's": found["gptq"] / found["gptqmodel"] - 1,
        "reading off": abs(found["gptqmodel"] / found["gptqmodel by itself"] - 1),
    }


def main() -> int:
    """Measure, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--train", type=Path, required=True, help="text that both makers calibrate by")
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--gptqmodel", type=Path, help=f"has {in_gptqmodel.INSTALL}")
    parser.add_argument("--scheme", default="w4a16")
    parser.add_argument("--group-size", type=int)
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--held-out-sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pageant-perplexity-") as place:
        found = measure(options, Path(place))
    judged = verdicts(found)
    lines = table(
        ["weights", "perplexity", "rise"],
        [[name, f"{value:.4f}", f"{value / found['original'] - 1:+.2%}"] for name, value in found.items()],
    )
    lines += [f"{name}: {value:+.2%}" for name, value in judged.items()]
    figures: dict[str, Any] = {
        "model": options.model.name,
        "scheme": options.scheme,
        "group_size": options.group_size,
        "calibration": [options.sequences, options.length],
        "perplexity": found,
        "verdicts": judged,
    }
    publish(figures, lines, options.json)
    limits = {"worse than gptqmodel's": MAKER_MAX, "reading off": READING_MAX}
    return int(any(value > limits[name] for name, value in judged.items()))


if __name__ == "__main__":
    sys.exit(main())
