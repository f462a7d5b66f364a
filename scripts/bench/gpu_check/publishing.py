"""The figures of a session as they are kept in the repository."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

from pageant.scripts.bench.gpu_check.bars import BARS
from pageant.scripts.bench.gpu_check.environment import ROOT
from pageant.scripts.bench.gpu_check.facts import commit_here, tree_digest
from pageant.scripts.bench.gpu_check.figures import Figures
from pageant.scripts.bench.gpu_check.session import read_session

__all__ = ["publish", "published"]


def publish(folder: Path, path: Path) -> int:
    """Write a session's figures and bars to `path`; returns the exit status."""
    try:
        results, cases = read_session(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"gpu_check: {folder} holds no session: {error}", file=sys.stderr)
        return 2
    facts = next(
        (case for case in cases if case.get("section") == "facts" and case.get("case") == "facts"), None
    )
    if facts is None:
        print(
            f"gpu_check: the session in {folder} has no facts of its device; expected a section 'facts'",
            file=sys.stderr,
        )
        return 2
    written = published(
        facts, cases, [f"{result.name}: {result.status}" for result in results if not result.well]
    )
    path.write_text(json.dumps(written, indent=1) + "\n")
    return 0


def published(facts: dict[str, Any], cases: list[dict[str, Any]], unwell: list[str]) -> dict[str, Any]:
    """Return the figures with device, versions and commit, and the bars with what was found."""
    figures = Figures(cases)
    passed, failed = figures.tests()
    bars = {
        bar.name: {
            "found": None if (value := bar.found(figures)) is None else round(value, 3),
            "must": bar.must,
            "good": bar.good,
            "met": None if value is None else bar.met(value),
        }
        for bar in BARS
    }
    machine = {
        name: value for name, value in facts.items() if name not in ("section", "case", "commit", "tree")
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(facts),
        "machine": machine,
        "sections_that_did_not_end_well": unwell,
        "tests": {"passed": passed, "failed": failed},
        "bars": bars,
        "cases": [case for case in cases if case.get("section") != "facts" and "outcome" not in case],
        "failed_tests": [case["case"] for case in cases if case.get("outcome") == "failed"],
    }


def _commit(facts: dict[str, Any]) -> str:
    """Return the measured commit: as the session knew it, or this checkout's where its code is the same."""
    if facts.get("commit"):
        return str(facts["commit"])
    if facts.get("tree") == tree_digest(ROOT):
        return commit_here() or f"tree {facts['tree']}"
    return f"another tree than this: {facts.get('tree')}"
