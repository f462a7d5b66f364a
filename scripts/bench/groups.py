"""`pageant bench groups`: what it costs that two executors compute a model, beside one with as many cores.

One executor has two threads, and each of two has one. On the same cores this is the price of a group, and no more. To
be faster, a group needs more cores than one executor can use. All layouts take turns within a round. Each is compared
with the one that is alone in the same round.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated, Any

import typer

from pageant.actors.client.llm import LLM
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.bench.progress import rounds
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json, in_turns, publish, table

ALONE = "alone"
LAYOUTS: dict[str, dict[str, Any]] = {
    ALONE: {"threads": 2},
    "tensor 2": {"threads": 1, "tensor_parallel": 2},
    "pipeline 2": {"threads": 1, "pipeline_parallel": 2},
}
PROMPT_TOKENS, OUTPUT_TOKENS, LONG_TOKENS, CHUNK_TOKENS, BATCH = 32, 64, 2048, 256, 16
FIGURES = ("one stream", f"batch of {BATCH}", f"prompt of {LONG_TOKENS}")
COLUMNS = (
    "layout",
    *(f"{figure}, tokens/s" for figure in FIGURES),
    *(f"{figure}, of alone" for figure in FIGURES),
)


@with_engine_options
def bench(
    engine: dict[str, Any],
    runs: Annotated[int, typer.Option(min=1, help="Rounds of all layouts.")] = 5,
    json: Json = None,
) -> None:
    """Price of tensor and of pipeline parallelism, beside one executor on the same cores."""
    settings = {
        **{"enable_prefix_caching": False, "max_num_batched_tokens": CHUNK_TOKENS},
        **{name: value for name, value in engine.items() if value is not None},
    }
    found: dict[str, list[list[float]]] = {name: [] for name in LAYOUTS}
    for number in rounds("all layouts", runs):
        for name, layout in in_turns(list(LAYOUTS.items()), number):
            found[name].append(_measure({**settings, **layout}))
    layouts = summary(found)
    given = {name: value for name, value in settings.items() if name != "model"}
    figures = {"rounds": runs, "settings": given, "layouts": layouts}
    rows = [
        (name, *(f"{value:,.1f}" for value in row["tokens_per_second"]), *map(str, row["of_alone"]))
        for name, row in layouts.items()
    ]
    publish(figures, table(COLUMNS, rows), json)


def summary(found: dict[str, list[list[float]]]) -> dict[str, dict[str, list[float]]]:
    """Return medians over the rounds, and of the shares of what one executor does in the same round.

    found: tokens per second by layout, round by round, for each of `FIGURES`.
    """
    layouts = {}
    for name, runs in found.items():
        shares = [
            [one / other for one, other in zip(run, alone, strict=True)]
            for run, alone in zip(runs, found[ALONE], strict=True)
        ]
        layouts[name] = {
            "tokens_per_second": [round(statistics.median(column), 1) for column in zip(*runs, strict=True)],
            "of_alone": [round(statistics.median(column), 3) for column in zip(*shares, strict=True)],
        }
    return layouts


def _measure(arguments: dict[str, Any]) -> list[float]:
    """Return the tokens per second of one stream's output, of a batch's, and of a long prompt."""
    with LLM(progress=False, placement="auto", **arguments) as llm:

        def seconds(count: int, prompt: int, output: int) -> float:
            # Prompts differ, so that none finds another's blocks.
            prompts = [[3 + (number * 7 + place) % 200 for place in range(prompt)] for number in range(count)]
            params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
            began = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            return time.perf_counter() - began

        long = min(LONG_TOKENS, llm.max_model_len - 1)
        seconds(BATCH, PROMPT_TOKENS, 4)  # warm up
        return [
            OUTPUT_TOKENS / seconds(1, PROMPT_TOKENS, OUTPUT_TOKENS),
            BATCH * OUTPUT_TOKENS / seconds(BATCH, PROMPT_TOKENS, OUTPUT_TOKENS),
            long / seconds(1, long, 1),
        ]
