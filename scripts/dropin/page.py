"""Writes `docs/from-vllm.md` from the table of vLLM's names: `python -m pageant.scripts.dropin.page`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from pageant.actors.client.vllm_names import (
    engine,
    methods,
    requests,
    server,
    values,
)
from pageant.actors.client.vllm_names.modules import WORKINGS
from pageant.actors.client.vllm_names.rows import Kind, Row
from pageant.actors.parsers.names import REASONING_PARSERS, TOOL_PARSERS

PAGE = Path(__file__).parents[2] / "docs" / "from-vllm.md"
RESULTS = PAGE.parent / "benchmarks" / "dropin.json"
"""What was measured last, by `python -m pageant.scripts.dropin`."""

INTRODUCTION = """\
# From vLLM

This page is a reference: every name that vLLM 0.32's users type, and what it means in Pageant. It is written from the
table in `actors/client/vllm_names` by `python -m pageant.scripts.dropin.page`; edit the table, not this page.

```python
from pageant import LLM, SamplingParams  # was: from vllm import LLM, SamplingParams

llm = LLM(model="./models/demo", tensor_parallel_size=1, dtype="auto")
outputs = llm.generate(["Explain lambda"], SamplingParams(temperature=0.8, max_tokens=16))
print(outputs[0].outputs[0].text)
```

`pageant serve` takes the flags of `vllm serve`, written in any of vLLM's ways: underscores or dashes, `-tp 1`, several
values after one flag, JSON or dotted keys (`--speculative-config.method ngram`), `4k` and `4K`, `--config FILE.yaml`.
A topology's YAML takes the same names as keys. Modules answer under vLLM's paths, such as `pageant.sampling_params` and
`pageant.v1.engine.async_llm`.

| what | means |
|---|---|
| same | the name means here what it means there |
| renamed | it sets what another name sets; both are taken |
| no effect | its values are taken and change nothing; the reason is given |
| not yet | values that ask for nothing are taken; any other is a `ValueError` with the reason and the nearest thing |

Differences that no name shows: `pageant serve` listens on 127.0.0.1 unless `--host` is given; `max_model_len` shrinks
to what memory holds unless it is given; sampling with a seed gives the same tokens whatever else is in the batch.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _row(row: Row, written: str) -> str:
    kind = row.kind.value if row.here is None else f"renamed to `{row.here}`"
    meaning = row.meaning
    if row.kind is Kind.NOT_YET and row.neutral:
        meaning += f" (takes {', '.join(f'`{one!r}`' for one in row.neutral)})"
    elif row.kind is Kind.NO_EFFECT and row.neutral:
        meaning += f" ({', '.join(f'`{one}`' for one in row.neutral)})"
    if row.nearest:
        meaning += f"; {row.nearest}"
    return f"| {written} | {kind} | {_cell(meaning)} |"


def _table(rows: Iterable[Row], *, flags: bool = False) -> list[str]:
    lines = ["| name | here | meaning |", "|---|---|---|"]
    for row in rows:
        short = "".join(f", `{one}`" for one in row.short)
        written = f"`--{row.name.replace('_', '-')}`" if flags else f"`{row.name}`"
        lines.append(_row(row, written + short))
    return [*lines, ""]


def _counts(tables: Iterable[Mapping[str, Row]]) -> str:
    rows = [row for table in tables for row in table.values()]
    counts = {kind: sum(row.kind is kind for row in rows) for kind in Kind}
    return ", ".join(f"{count} {kind.value}" for kind, count in counts.items())


def _parsers(known: Mapping[str, str], refused: Mapping[str, str]) -> list[str]:
    lines = ["| vLLM's | here |", "|---|---|"]
    lines += [f"| `{name}` | `{ours}` |" for name, ours in sorted(known.items())]
    lines += [f"| `{name}` | not yet: {_cell(why)} |" for name, why in sorted(refused.items())]
    return [*lines, ""]


def render() -> str:
    """Return the page."""
    lines = [INTRODUCTION, *measured()]
    lines += [
        "## Arguments of the engine",
        "",
        "Keyword arguments of `LLM`, `EngineArgs` and `AsyncLLM`, flags of `pageant serve` (with dashes), and keys of",
        f"YAML: {_counts([engine.ENGINE])}.",
        "",
    ]
    for title, rows in engine.GROUPS.items():
        lines += [f"### {title}", "", *_table(rows)]
    lines += ["## Flags of the server", "", f"{_counts([server.SERVER]).capitalize()}.", ""]
    for title, rows in server.GROUPS.items():
        lines += [f"### {title}", "", *_table(rows, flags=True)]
    lines += ["## Parsers", "", "### `--tool-call-parser`", "", *_parsers(*TOOL_PARSERS)]
    lines += ["### `--reasoning-parser`", "", *_parsers(*REASONING_PARSERS)]
    for title, table in SECTIONS.items():
        lines += [f"## {title}", "", *_table(table.values())]
    return "\n".join(lines).rstrip() + "\n"


SECTIONS: dict[str, Mapping[str, Row]] = {
    "`SamplingParams`": requests.SAMPLING,
    "`BeamSearchParams`": requests.BEAMS,
    "`StructuredOutputsParams`": requests.STRUCTURED,
    "Names of the package": methods.EXPORTS,
    "`LLM`": methods.LLM,
    "`LLMEngine`": methods.LLM_ENGINE,
    "`AsyncLLM` and `AsyncLLMEngine`": methods.ASYNC_LLM,
    "Parameters of these methods": methods.PARAMETERS,
    "`RequestOutput` and `CompletionOutput`": methods.OUTPUTS,
    "`LoRARequest`": methods.LORA_REQUEST,
}


RUNS = {
    "online examples": "vLLM's examples that talk to a server, with `vllm` and the port changed",
    "offline examples": "its examples in Python that generate text, with `vllm` changed",
    "launches": "the servers that its tests start, with their flags as written",
    "snippets": "the snippets of its documentation that use an `LLM`, with `vllm` changed",
}
"""Kinds of results, and what each is of."""


def measured() -> list[str]:
    """Return the section with the figures that were measured last; nothing where none were."""
    if not RESULTS.exists():
        return []
    kept = json.loads(RESULTS.read_text())
    lines = [
        "## How much runs",
        "",
        f"Measured with vLLM {kept['vllm']}'s source distribution by `python -m pageant.scripts.dropin` "
        "([dropin.json](benchmarks/dropin.json)",
        "has each outcome). Models are small ones with random weights under the names that scripts give. *Refused* is",
        "for a reason of this page, or for an architecture that is not there; *other* is anything else.",
        "",
        "| what | all | run | refused | other |",
        "|---|---|---|---|---|",
    ]
    for kind, what in RUNS.items():
        if (one := kept.get(kind)) is not None:
            other = one["count"] - one["ran"] - one["refused"]
            lines.append(f"| {what} | {one['count']} | {one['ran']} | {one['refused']} | {other} |")
    left_out = [f"- {where}: {what}" for where, what in kept["left_out"].items()]
    return [*lines, "", "Examples that are not run:", "", *left_out, ""]


def reasons() -> set[str]:
    """Return every reason that the page gives for what is not taken."""
    tables = (engine.ENGINE, server.SERVER, *SECTIONS.values())
    rows = {
        row.meaning for table in tables for row in table.values() if row.neutral or row.kind is Kind.NOT_YET
    }
    return {*rows, WORKINGS, values.OTHER_KV_CACHES} | {
        why for _, refused in (TOOL_PARSERS, REASONING_PARSERS) for why in refused.values()
    }


def main() -> None:
    """Write the page."""
    PAGE.write_text(render())


if __name__ == "__main__":
    main()
