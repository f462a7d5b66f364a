"""Holds the language of the code base: docstrings that stand by themselves, short sentences, units where they are used.

`language_rules` has the checks. `EXCEPTIONS` lists the folders that do not meet the bar yet, with a ceiling for each
figure. It is a ratchet: lower a ceiling when a folder gets better, remove the folder when it meets the bar, add none.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

import pageant
from tests import language_rules as rules

ROOT = Path(pageant.__file__).parent
OPENINGS_SHARE_MAX = 0.03
LINES_MAX = 400
# Of a body: the signature and the docstring are not counted.
FUNCTION_LINES_MAX = 70
SOURCE_FOLDERS = ("protocol", "actors", "kernels", "models", "scripts", "docs", "tests")
# Folders whose children are rooms of their own.
PARENTS = ("actors", "kernels", "scripts", "tests")


@dataclass(frozen=True)
class Figures:
    """Faults of one folder: docstrings with a bad opening, long sentences, and functions that leave out units."""

    openings: int = 0
    long_sentences: int = 0
    units: int = 0


# folder: the most faults that it may have.
EXCEPTIONS: dict[str, Figures] = {}
# page: the most long sentences that it may have.
PAGE_EXCEPTIONS: dict[str, int] = {}


def folder_of(path: Path) -> str:
    """Return the folder that a file is counted under: two levels below `PARENTS`, else the top one."""
    parts = path.relative_to(ROOT).parts[:-1]
    return "/".join(parts[: 2 if parts[0] in PARENTS else 1])


@functools.cache
def sources() -> tuple[tuple[Path, str], ...]:
    """Return every Python file of the source folders, with its text."""
    paths = sorted(path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return tuple((path, path.read_text()) for path in paths)


@functools.cache
def folders() -> tuple[str, ...]:
    """Return the folders that hold Python files."""
    return tuple(sorted({folder_of(path) for path, _ in sources()}))


@functools.cache
def classes() -> rules.Classes:
    """Return the classes of the whole tree."""
    found = rules.Classes()
    for _, text in sources():
        found.add(text)
    return found


def _of_folder(folder: str) -> list[tuple[Path, str]]:
    return [(path, text) for path, text in sources() if folder_of(path) == folder]


def _listing(faults: list[str], allowed: float) -> str:
    return f"{len(faults)} faults, {allowed:g} allowed:\n" + "\n".join(faults)


@pytest.mark.parametrize("folder", folders())
def test_docstrings_begin_with_a_verb_or_the_noun_that_they_document(folder):
    faults, total = [], 0
    for path, text in _of_folder(folder):
        for one in rules.documented(text):
            total += 1
            if rules.begins_badly(one.docstring):
                faults.append(
                    f"{path.relative_to(ROOT)}:{one.line} {one.name}: {one.docstring.splitlines()[0]}"
                )
    allowed = max(EXCEPTIONS.get(folder, Figures()).openings, OPENINGS_SHARE_MAX * total)
    assert len(faults) <= allowed, _listing(faults, allowed)


@pytest.mark.parametrize("folder", folders())
def test_no_sentence_of_a_docstring_has_more_than_forty_words(folder):
    faults = [
        f"{path.relative_to(ROOT)}:{one.line} {one.name}: {sentence}"
        for path, text in _of_folder(folder)
        for one in rules.documented(text)
        for sentence in rules.long_sentences(one.docstring)
    ]
    allowed = EXCEPTIONS.get(folder, Figures()).long_sentences
    assert len(faults) <= allowed, _listing(faults, allowed)


@pytest.mark.parametrize("folder", [one for one in folders() if not one.startswith("tests")])
def test_public_functions_say_shapes_dtypes_and_units(folder):
    faults = [
        f"{path.relative_to(ROOT)}:{line} {name}: {fault}"
        for path, text in _of_folder(folder)
        for line, name, fault in rules.unsaid_units(text, classes())
    ]
    allowed = EXCEPTIONS.get(folder, Figures()).units
    assert len(faults) <= allowed, _listing(faults, allowed)


@pytest.mark.parametrize(
    "page", sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
)
def test_no_sentence_of_a_page_has_more_than_forty_words(page):
    faults = rules.long_sentences((ROOT / page).read_text())
    allowed = PAGE_EXCEPTIONS.get(page, 0)
    assert len(faults) <= allowed, _listing(faults, allowed)


def test_every_exception_is_of_a_folder_or_page_that_exists():
    """An exception of a folder that was renamed would hide nothing and stay for ever."""
    assert set(EXCEPTIONS) <= set(folders())
    assert all((ROOT / page).is_file() for page in PAGE_EXCEPTIONS)


# Files.


def too_long(files: Iterable[tuple[str, str]]) -> list[str]:
    """Return the files, by name and text, that have more lines than a file may have."""
    return [f"{name}: {len(text.splitlines())} lines" for name, text in files if text.count("\n") > LINES_MAX]


@pytest.mark.parametrize("folder", SOURCE_FOLDERS)
def test_no_file_has_more_lines_than_can_be_read_at_a_time(folder):
    paths = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".h", ".cpp")]
    found = too_long((str(path.relative_to(ROOT)), path.read_text()) for path in sorted(paths))
    assert paths
    assert not found, f"at most {LINES_MAX}; split what has two reasons to change: {found}"


@pytest.mark.parametrize("folder", folders())
def test_no_function_has_more_lines_than_can_be_read_at_a_glance(folder):
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}: {lines} lines"
        for path, text in _of_folder(folder)
        for name, line, lines in rules.function_lengths(text)
        if lines > FUNCTION_LINES_MAX
    ]
    assert not found, f"at most {FUNCTION_LINES_MAX} lines without signature and docstring: {found}"


# The checks bite.


def test_the_lines_of_a_function_are_those_of_its_body():
    source = 'class A:\n    def f(\n        self,\n    ):\n        """Do.\n\n        More.\n        """\n'
    body = "        g(\n            1,\n        )\n        def h():\n            return 1\n"
    assert rules.function_lengths(source + body) == [("f", 2, 5), ("h", 12, 1)]
    assert rules.function_lengths('def f() -> None:\n    """Do."""\n') == [("f", 1, 0)]


def test_a_file_that_is_too_long_is_found():
    assert too_long([("a.py", "x\n" * LINES_MAX), ("b.py", "x\n" * (LINES_MAX + 1))]) == ["b.py: 401 lines"]


@pytest.mark.parametrize(
    "docstring",
    [
        "Of all shapes, which read what they go by at the same places.",
        "What it is to be told now.",
        "Those of N rows.",
        "Whether a block is free.",
        "How long steps take.",
        "One of them: its place in the row.",
        "The same of one row, as views.",
        "It cannot, for a reason that is the request's.",
        "By place, for those of some rows that follow any draft.",
    ],
)
def test_a_bad_opening_is_found(docstring):
    assert rules.begins_badly(docstring)


@pytest.mark.parametrize(
    "docstring",
    [
        "Return the events to send to this follower now.",
        "Static input buffers shared by the recorded programs of every batch shape.",
        "`pageant swap`: asks the supervisor of a running topology.",
        "One token's keys and values.",
        "Every array within a message, in field order.",
    ],
)
def test_a_good_opening_passes(docstring):
    assert not rules.begins_badly(docstring)


def test_a_long_sentence_is_found_across_lines_and_not_in_code_tables_or_lists():
    long, short = "word " * 40 + "word.", "word " * 39 + "word."
    assert rules.long_sentences("Short one. " + long.replace("word word", "word\nword", 1)) == [long]
    assert not rules.long_sentences(f"{short} {short}")
    assert not rules.long_sentences("\n".join(["- " + "word " * 30] * 3))
    assert not rules.long_sentences(f"Like so:\n\n    {long}\n")
    assert rules.long_sentences(f"Args:\n    one: {long}\n    two: word.") == [f"one: {long}"]
    assert not rules.long_sentences(f"```\n{long}\n```\n| {long} |\n# {long}\n")


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('def f(x: Tensor) -> None:\n    """Add one to x, float32."""', "f has arrays and says no shape"),
        ('def f(x: Tensor) -> None:\n    """Add one to x [T, H]."""', "f has arrays and says no dtype"),
        ("def f(x: Int32Vector) -> None: ...", "f has arrays and says no shape"),
        (
            'class A:\n    def f(self) -> npt.NDArray[N]:\n        """[N]."""',
            "A.f has arrays and says no dtype",
        ),
        ('def f(timeout: float) -> None:\n    """Wait."""', "f says no unit of timeout"),
        ('def f(*, idle_since: float | None) -> None:\n    """Wait."""', "f says no unit of idle_since"),
    ],
)
def test_a_function_without_shape_dtype_or_unit_is_found(source, fault):
    [(_, name, found)] = rules.unsaid_units(source, rules.Classes())
    assert f"{name} {found}" == fault


@pytest.mark.parametrize(
    "source",
    [
        'def f(x: Tensor) -> None:\n    """Add one to x, float32 [T, H]."""',
        'def f(x: Int32Vector) -> None:\n    """Sort x [N]."""',
        'def f(timeout: float) -> None:\n    """Wait at most `timeout` seconds."""',
        "def f(timeout_seconds: float) -> None: ...",
        "def _f(x: Tensor, timeout: float) -> None: ...",
        'class A:\n    """A clock, in seconds."""\n    def f(self, now: float) -> None: ...',
        'class B:\n    def f(self, x: NDArray):\n        """x: int8 [N]."""\n'
        "class C(B):\n    def f(self, x: NDArray): ...",
    ],
)
def test_a_function_that_says_them_passes(source):
    classes = rules.Classes()
    classes.add(source)
    assert not rules.unsaid_units(source, classes)
