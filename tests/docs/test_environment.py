"""The page of environment variables has every variable that the sources read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pageant

ROOT = Path(pageant.__file__).parent
PAGE = ROOT / "docs" / "environment.md"
FOLDERS = ("actors", "kernels", "models", "protocol", "scripts", "tests")
# A macro of the C++ sources is no variable; nor is what a test of a launcher sets and reads back itself.
OURS = re.compile(r"(?<!-D)\bPAGEANT_[A-Z0-9_]+\b")
READ = re.compile(
    r"""environ(?:\.get\(|\.setdefault\(|\[)["']([A-Z][A-Z0-9_]*)["']|["']([A-Z_]+)["'] (?:not )?in os\.environ"""
)
OF_BENCHMARKS = ("scripts/bench", "scripts/cubins", "scripts/dropin", "tests")
MADE_UP = {"PAGEANT_TEST_OF_SPARES"}


def _sources() -> Iterator[tuple[str, str]]:
    """Yield the path below the root and the text of each source."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            is_script = path.suffix == "" and path.parent == ROOT / "scripts"
            if path.is_file() and (path.suffix in (".py", ".js") or is_script):
                yield path.relative_to(ROOT).as_posix(), path.read_text()
    for path in ROOT.glob("Dockerfile*"):
        yield path.name, path.read_text()


def _on_the_page() -> set[str]:
    return set(re.findall(r"`([A-Z][A-Z0-9_]+)`", PAGE.read_text()))


def test_every_variable_of_ours_is_on_the_page():
    found = {name for path, text in _sources() for name in OURS.findall(text)} - MADE_UP
    assert {"PAGEANT_API_KEY", "PAGEANT_CACHE", "PAGEANT_CPU_LEVEL"} <= found
    assert found - _on_the_page() == set()


def test_every_variable_of_others_that_the_product_reads_is_on_the_page():
    found = {
        name
        for path, text in _sources()
        if not path.startswith(OF_BENCHMARKS)
        for names in READ.findall(text)
        for name in names
        if name
    }
    assert "CXX" in found
    assert found - _on_the_page() - {"PYTHONPATH"} == set()


def test_every_variable_of_ours_on_the_page_is_read():
    texts = " ".join(text for path, text in _sources() if path != "tests/docs/test_environment.py")
    assert {name for name in _on_the_page() if name.startswith("PAGEANT_") and name not in texts} == set()
