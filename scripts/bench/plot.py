"""A file of docs/benchmarks that `compare` wrote, as a plot (SVG) and as tables of docs/benchmarks.md.

python -m pageant.scripts.bench.plot [docs/benchmarks/cpu.json]

The page says by comments where the tables of which file are.
"""

from __future__ import annotations

import argparse
import json
from html import escape
from pathlib import Path
from typing import Any

from pageant.scripts.bench.compare import OUT, UNQUANTIZED

NAMES = {
    "pageant": "Pageant",
    UNQUANTIZED: "Pageant, bfloat16",
    "vllm": "vLLM (CPU)",
    "openvino": "OpenVINO GenAI",
    "llama_cpp": "llama.cpp",
    "transformers": "transformers",
}
WEIGHTS = {"bf16": "bfloat16", "tiny": "bfloat16, tiny model", "int8": "int8", "int4": "int4"}
OURS, THEIRS, INK = "#2f6f4f", "#b9c2cc", "#24292f"
PANEL_WIDTH, LABEL_WIDTH, VALUE_WIDTH, ROW, TITLE, GAP, COLUMNS = 400, 120, 60, 20, 28, 18, 2
BEGIN, END = "<!-- figures of {}, written by scripts/bench/plot.py -->", "<!-- end of figures -->"

Bars = list[tuple[str, float]]


def panels(result: dict[str, Any]) -> list[tuple[str, str, Bars]]:
    """Title, unit and bars of each panel, engines in the order of `NAMES`; who failed has no bar."""
    found = []
    for key, workloads in result["workloads"].items():
        for name, engines in workloads.items():
            found.append((f"{name}, {WEIGHTS[key]}", "s", _bars(engines, "seconds")))
    found.append(("ready after the start", "s", _bars(result["startup"], "ready_seconds")))
    found.append(("peak memory", "GiB", _bars(result["startup"], "peak_pss_gib")))
    return [panel for panel in found if panel[2]]


def _bars(engines: dict[str, Any], figure: str) -> Bars:
    return [(engine, engines[engine][figure]) for engine in NAMES if figure in engines.get(engine, {})]


def svg(result: dict[str, Any]) -> str:
    """Bars, shorter is better: every panel has its own scale."""
    drawn, heights = [], [0] * COLUMNS
    for title, unit, bars in panels(result):
        column = heights.index(min(heights))
        drawn.append(_panel(title, unit, bars, column * (PANEL_WIDTH + GAP), heights[column]))
        heights[column] += TITLE + ROW * len(bars) + GAP
    width, height = COLUMNS * (PANEL_WIDTH + GAP), max(heights)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-GAP} 0 {width + GAP} {height}" width="{width}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">\n'
        f'<rect x="{-GAP}" width="100%" height="100%" fill="white"/>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def _panel(title: str, unit: str, bars: Bars, x: int, y: int) -> str:
    lines = [f'<text x="{x}" y="{y + 18}" font-weight="bold">{escape(title)}</text>']
    longest = max(value for _, value in bars)
    for row, (engine, value) in enumerate(bars):
        top = y + TITLE + row * ROW
        length = (PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH) * value / longest
        fill = OURS if engine in ("pageant", UNQUANTIZED) else THEIRS
        lines += [
            f'<text x="{x + LABEL_WIDTH - 8}" y="{top + 13}" text-anchor="end">{escape(NAMES[engine])}</text>',
            f'<rect x="{x + LABEL_WIDTH}" y="{top + 2}" width="{length:.1f}" height="{ROW - 5}" fill="{fill}"/>',
            f'<text x="{x + LABEL_WIDTH + length + 5:.1f}" y="{top + 13}">{value:.2f} {unit}</text>',
        ]
    return "\n".join(lines)


def tables(result: dict[str, Any]) -> str:
    """Markdown: where and when, seconds by workload and engine, and starts."""
    machine = result["machine"]
    columns = [(key, name) for key, workloads in result["workloads"].items() for name in workloads]
    engines = [
        engine for engine in NAMES if any(engine in result["workloads"][key][name] for key, name in columns)
    ]
    versions = {engine: row["version"] for engine, row in result["startup"].items() if row.get("version")}
    lines = [
        f"{machine['date']}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_read_gb_per_second']} GB/s "
        f"read from memory and {machine['bfloat16_gflop_per_second']:,} GFLOP/s in bfloat16 products, as measured in "
        "the same run." + "".join(map(_update, result.get("updates", ()))),
        "",
        "Seconds, medians (fewer are better):",
        "",
        "| engine | " + " | ".join(f"`{name}`, {WEIGHTS[key]}" for key, name in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for engine in engines:
        cells = [_cell(result["workloads"][key][name].get(engine)) for key, name in columns]
        lines.append(f"| {NAMES[engine]} {versions.get(engine, '')} | " + " | ".join(cells) + " |")
    if result["startup"]:
        lines += [
            "",
            "| engine | ready, s | KV cache asked for, GiB | peak memory, GiB |",
            "|---|---|---|---|",
        ]
    for engine, row in result["startup"].items():
        figures = [row.get(figure) for figure in ("ready_seconds", "kv_gib", "peak_pss_gib")]
        name = NAMES[engine] + (f", {row['quantization']}" if row.get("quantization") else "")
        cells = ["failed" if figure is None else str(figure) for figure in figures]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _update(update: dict[str, Any]) -> str:
    machine, options = update["machine"], update["command"].split("TINY_MODEL ")[-1]
    return (
        f" Measured again on {machine['date']}, at {machine['memory_read_gb_per_second']} GB/s and "
        f"{machine['bfloat16_gflop_per_second']:,} GFLOP/s: `{options}`."
    )


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"{row['seconds']:.2f}" if "seconds" in row else "failed"


def write(path: Path) -> None:
    """The plot beside the figures, and the tables into the page about them."""
    result = json.loads(path.read_text())
    path.with_suffix(".svg").write_text(svg(result))
    page = path.parent.parent / "benchmarks.md"
    begin = BEGIN.format(path.name)
    before, found, rest = page.read_text().partition(begin)
    if not found:
        raise ValueError(f"{page} has no place for the tables: expected {begin!r} in it")
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{begin}\n{tables(result)}\n{END}{after}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", type=Path, nargs="?", default=OUT)
    write(parser.parse_args().figures)
