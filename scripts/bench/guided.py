"""`pageant bench guided`: what structured output costs per step.

One engine, and the same requests with and without a grammar, in turn: each draws exactly as many tokens, since the
grammar's language has no end within them. `kinds` are grammars of different cost. Beside the time that a grammar adds
to a step stands the CPU time that it adds, by process: the two differ by what is done while the forward pass runs, and
by whoever else is on the machine.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Annotated, Any, NamedTuple

import typer

from pageant.actors.client.llm import LLM
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.workloads import random_ids
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json, in_turns, publish

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "kind": {"enum": ["person", "place", "thing"]},
        "score": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,12}$"}, "maxItems": 4},
    },
    "required": ["name", "kind", "score", "tags"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "schema": {"json": {"type": "array", "items": RECORD, "minItems": 1000}},
    "json": {"json": {"type": "array", "items": {}, "minItems": 1000}},
    "regex": {"regex": r"([A-Z][a-z]+( [a-z]+)*\. )+"},
    "grammar": {
        "grammar": 'start: (WORD "=" VALUE ";")+\nVALUE: /[0-9]+/ | "yes" | "no"\nWORD: /[a-z_]{1,9}/'
    },
}


@with_engine_options
def bench(
    engine: dict[str, Any],
    rows: Annotated[int, typer.Option(help="Requests in each step.")] = 64,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 16,
    output: Annotated[int, typer.Option(help="Tokens of each answer.")] = 256,
    rounds_: Annotated[int, typer.Option("--rounds", help="Pairs of runs; the medians count.")] = 7,
    kinds: Annotated[str, typer.Option(help="Of these, with commas: " + ", ".join(KINDS))] = ",".join(KINDS),
    json: Json = None,
) -> None:
    """Requests with and without a grammar, in turn: microseconds that it adds to a step."""
    chance = random.Random(0)
    prompts = [random_ids(chance, prompt) for _ in range(rows)]
    figures: dict[str, Any] = {"rows": rows, "output": output}
    with LLM(progress=False, **{"max_model_len": prompt + output, "max_num_seqs": rows, **engine}) as llm:
        for kind in kinds.split(","):
            asked = StructuredOutputsParams(**KINDS[kind])
            _run(llm, prompts, output, asked)  # compiles, and warms up
            pairs = [_pair(llm, prompts, output, asked, turn) for turn in rounds(kind, rounds_)]
            figures[kind] = _report(pairs, output)
        figures["rows_deferred"] = llm.scheduler_statistics().counters["rows_deferred"]
    lines = [
        f"{kind:>8}: {row['free_us']:.0f} us per step of {rows} rows, {row['guided_us']:.0f} us guided: "
        f"{row['added_us']:+.0f} us, and of CPU time "
        + ", ".join(f"{added:+.0f} in {node}" for node, added in row["added_cpu_us"].items())
        for kind, row in figures.items()
        if isinstance(row, dict)
    ]
    publish(figures, [*lines, f"rows that had to wait for their masks: {figures['rows_deferred']}"], json)


class Took(NamedTuple):
    """Seconds of a run, and of CPU time in each node's process."""

    seconds: float
    cpu: dict[str, float]


def _pair(
    llm: LLM, prompts: list[list[int]], output: int, asked: StructuredOutputsParams, turn: int
) -> tuple[Took, Took]:
    """A run without and one with; who is first takes turns."""
    took = {one: _run(llm, prompts, output, one) for one in in_turns((None, asked), turn)}
    return took[None], took[asked]


def _run(llm: LLM, prompts: list[list[int]], output: int, asked: StructuredOutputsParams | None) -> Took:
    # Greedy, since to draw among the few tokens that a grammar leaves costs less than among all.
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, structured_outputs=asked)
    before, began = _cpu_seconds(llm), time.perf_counter()
    outputs = llm.generate(prompts, params, progress=False)
    took, after = time.perf_counter() - began, _cpu_seconds(llm)
    assert all(len(one.outputs[0].token_ids) == output for one in outputs), "a language came to its end"
    return Took(took, {node: after[node] - before[node] for node in after})


def _cpu_seconds(llm: LLM) -> dict[str, float]:
    return {node.node: node.cpu_seconds for node in llm.statistics()}


def _report(pairs: list[tuple[Took, Took]], steps: int) -> dict[str, Any]:
    added = [(guided.seconds - free.seconds) / steps * 1e6 for free, guided in pairs]
    return {
        "free_us": round(statistics.median(free.seconds for free, _ in pairs) / steps * 1e6, 1),
        "guided_us": round(statistics.median(guided.seconds for _, guided in pairs) / steps * 1e6, 1),
        "added_us": round(statistics.median(added), 1),
        "added_us_all": [round(one, 1) for one in added],
        "added_cpu_us": {
            node: round(
                statistics.median(guided.cpu[node] - free.cpu[node] for free, guided in pairs) / steps * 1e6,
                1,
            )
            for node in pairs[0][0].cpu
        },
    }
