"""Process inside an engine's own environment: converts a checkpoint, or loads it and generates when told to.

    python serving.py PEER_FILE convert MODEL QUANTIZATION FOLDER
    python serving.py PEER_FILE serve JOB_FILE

A job is JSON: `model`, `quantization` (null, int8 or int4), `kv_gib`, `settings` (the engine's own), and
`workloads`, each with its `prompts` and `output_tokens`. An engine that serves says on standard output that it
is ready, when it has generated one token; then, for every workload that is named on standard input, how long it
took and how many tokens came out. What its libraries print goes to standard error.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """See the module's text."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = runpy.run_path(sys.argv[1])
    if sys.argv[2] == "convert":
        model, quantization, folder = sys.argv[3:6]
        peer["convert"](Path(model), quantization, Path(folder))
    else:
        serve(peer, json.loads(Path(sys.argv[3]).read_text()), answers)


def serve(peer: dict[str, Any], job: dict[str, Any], answers: Any) -> None:
    """Loads, then one line of JSON for every line of standard input."""

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    generate = peer["load"](job)
    first = next(iter(job["workloads"].values()))
    generate(first["prompts"][:1], 1)
    answer(version=peer["DISTRIBUTION"] and importlib.metadata.version(peer["DISTRIBUTION"]))
    for line in sys.stdin:
        work = job["workloads"][line.strip()]
        began = time.perf_counter()
        tokens = generate(work["prompts"], work["output_tokens"])
        answer(seconds=time.perf_counter() - began, tokens=tokens)


if __name__ == "__main__":
    main()
