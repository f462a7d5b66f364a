"""The plot and the tables say what the figures say, engines that failed included."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import pageant
from pageant.scripts.bench import plot

RESULT = {
    "machine": {
        "date": "2026-01-01",
        "cpu": "A & B",
        "cores": 4,
        "memory_read_gb_per_second": 50.0,
        "bfloat16_gflop_per_second": 1000,
    },
    "workloads": {
        "bf16": {
            "single": {"vllm": {"seconds": 4.0}, "pageant": {"seconds": 2.0}},
            "batch": {"pageant": {"seconds": 9.0}, "vllm": {"failed": "out of memory"}},
        },
        "int8": {"single": {"pageant": {"seconds": 1.0}, "llama_cpp": {"seconds": 1.5}}},
    },
    "startup": {
        "pageant": {"version": None, "ready_seconds": 3.0, "kv_gib": 4, "peak_pss_gib": 5.5},
        "vllm": {"failed": "no"},
    },
}


def test_bars_are_as_long_as_what_they_stand_for_and_the_failed_have_none():
    panels = {title: bars for title, _, bars in plot.panels(RESULT)}
    assert panels["single, bfloat16"] == [("pageant", 2.0), ("vllm", 4.0)]
    assert panels["batch, bfloat16"] == [("pageant", 9.0)]
    assert panels["peak memory"] == [("pageant", 5.5)]
    tree = ElementTree.fromstring(plot.svg(RESULT))
    bars = [one for one in tree.iter("{http://www.w3.org/2000/svg}rect") if one.get("x") != str(-plot.GAP)]
    ours, theirs = (float(one.get("width")) for one in bars[:2])
    assert theirs == 2 * ours


def test_the_page_keeps_its_text_around_the_tables(tmp_path):
    (tmp_path / "benchmarks").mkdir()
    figures, page = tmp_path / "benchmarks" / "cpu.json", tmp_path / "benchmarks.md"
    figures.write_text(json.dumps(RESULT))
    others = f"{plot.BEGIN.format('others.json')}\nother tables\n{plot.END}\n"
    page.write_text(f"before\n{others}{plot.BEGIN.format('cpu.json')}\nold\n{plot.END}\nafter\n")
    plot.write(figures)
    plot.write(figures)  # again: nothing is doubled
    text = page.read_text()
    assert text.startswith(f"before\n{others}") and text.endswith("after\n") and "old" not in text
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| vLLM")]
    assert [cell.strip() for cell in rows[0][1:]] == ["4.00", "failed", ""]
    assert [cell.strip() for cell in rows[1][1:]] == ["failed"] * 3


def test_there_is_no_table_of_starts_without_any():
    assert "| engine | ready" in plot.tables(RESULT)
    assert "| engine | ready" not in plot.tables(RESULT | {"startup": {}})


def test_a_page_without_a_place_for_the_tables_is_refused(tmp_path):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "new.json").write_text(json.dumps(RESULT))
    (tmp_path / "benchmarks.md").write_text(f"{plot.BEGIN.format('cpu.json')}\nold\n{plot.END}\n")
    with pytest.raises(ValueError, match=r"expected '<!-- figures of new\.json"):
        plot.write(tmp_path / "benchmarks" / "new.json")


def test_the_page_shows_the_figures_that_are_committed():
    docs = Path(pageant.__file__).parent / "docs"
    page = (docs / "benchmarks.md").read_text()
    shown = re.findall(plot.BEGIN.format(r"(\S+)"), page)
    assert shown == ["cpu-amx.json", "cpu-no-amx.json", "cpu-zen5.json", "cpu-zen4.json"]
    for name in shown:
        after = page.split(plot.BEGIN.format(name))[1]
        written = after.split(plot.END)[0]
        assert written.strip() == plot.tables(json.loads((docs / "benchmarks" / name).read_text())).strip()


def test_what_was_measured_again_is_said_with_its_own_date():
    machine = RESULT["machine"] | {"date": "2026-02-02", "bfloat16_gflop_per_second": 2000}
    again = {"machine": machine, "command": "python -m compare MODEL TINY_MODEL --groups bf16 --update"}
    said = plot.tables(RESULT | {"updates": [again]})
    assert "2026-02-02, at 50.0 GB/s and 2,000 GFLOP/s: `--groups bf16 --update`" in said
    assert "Measured again" not in plot.tables(RESULT)
