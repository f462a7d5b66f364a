"""Every snippet of the README and of the pages under docs runs as it is written, imports included.

- Python runs in one process for each page, snippet after snippet, as a reader copies them. One whose first line is
  `# my_lab/counting.py` is that file, which later ones import.
- YAML is resolved as a topology. One whose first line is `# topology.yaml` is that file.
- Commands run one after another. Those that never end, take minutes or need what is not here are read by the command
  line's own parser instead: `READ_ONLY` says why.
- A block after a comment `<!-- not run: REASON -->` is left out. There are at most `MARKED_MAX`.

`my_lab` is the reader's own code, `models/` and `adapters/` the reader's files. A server listens at a port of its own
in place of 8000.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from transformers import AutoModelForCausalLM

import pageant
from pageant.actors.client.resolved_models import resolve_topology
from pageant.actors.client.settings import topology_of
from pageant.actors.runtime.transport.keys import make_keys, write_keys
from tests.command_words import read_words
from tests.random_adapters import save_adapter
from tests.warm_processes import WILLING

ROOT = Path(pageant.__file__).parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DEMO = ROOT / "models" / "demo"
MARK = re.compile(r"<!-- not run: ([^>]+) -->")
MARKED_MAX = 6
READ_ONLY = {
    "serve": "never ends",
    "chat": "waits for what is typed",
    "node": "waits for a root",
    "top": "watches a server until it is ended",
    "chaos": "takes minutes",
    "bench": "takes minutes",
    "quantize": "reads a model and texts of the reader's",
    "simulate": "takes minutes; its own tests run seeds",
    "record": "needs a topology that runs; its own tests record",
    "replay": "needs a recording of an hour",
    "plan": "needs a recording of an hour; its own tests plan",
    "tune": "takes minutes; its own tests tune",
    "swap": "needs a topology that runs; its own tests swap",
    "replicas": "needs a topology that runs; its own tests add and drain",
    "model": "needs a server that runs; its own tests pause",
    "run-batch": "needs the reader's requests; its own tests answer some",
}
OTHER_PROGRAMS = {"claude": "an agent", "pip": "installs", "export": "is the shell's", "pytest": "is this"}
ANSWERS = {  # what a snippet must print, by page and number among its Python snippets
    ("README.md", 0): r"[Ll]ist",
    ("README.md", 1): r"ambda.*[.:!)]\s*$",
    ("README.md", 2): r"A list is \w.*A tuple is \w",
    ("structured-output.md", 0): r"^\d+$",
    ("tutorial.md", 0): r"A tuple is \w",
    ("tutorial.md", 1): r"A list is \w.*A set is \w.*A module is \w",
    ("tutorial.md", 2): r"^\{'is_mutable': (True|False)\}$",
    ("writing-an-actor.md", 2): r"^Counted\(total=15\)$",
}
LAB = {
    "scheduler": "from pageant.actors.scheduler.actor import Scheduler as MyScheduler",
    "policies": "from pageant.actors.scheduler.actor import Scheduler as MyScheduler",
    "processors": "class Banned:\n    def wants(self, params): return False\n    def apply(self, logits, rows): ...",
    "actors": """
        from pageant.actors.runtime import Actor, receives
        from pageant.protocol.message import Message, Request

        class SnippetCounted(Message, frozen=True, kw_only=True):
            value: int

        class Count(Request[SnippetCounted], frozen=True, kw_only=True):
            pass

        class Counter(Actor):
            async def on_start(self) -> None:
                self.value = 0

            @receives
            def count(self, request: Count) -> SnippetCounted:
                self.value += 1
                return SnippetCounted(value=self.value)
    """,
}
RUN_ALL = """
import sys

for path in sys.argv[1:]:
    print(f"=== {path}", flush=True)
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), sys.modules["__main__"].__dict__)
"""


class Snippet(NamedTuple):
    """A block of code on a page; `mark` says why it is not run."""

    page: Path
    line: int
    language: str
    text: str
    mark: str | None


def _snippets(page: Path) -> list[Snippet]:
    """Return a page's blocks of code: those between fences, and those that are indented under a paragraph."""
    found: list[Snippet] = []
    lines = page.read_text().splitlines()
    mark, before, place = None, "", 0
    while place < len(lines):
        line, begin = lines[place], place + 1
        fence = re.match(r"```(\w*)$", line)
        is_code = line.startswith("    ") and not before.startswith(("- ", "  ")) and not lines[place - 1]
        if fence is not None:
            end = lines.index("```", begin)
            found.append(Snippet(page, begin, fence[1], "\n".join(lines[begin:end]) + "\n", mark))
            place, mark = end, None
        elif is_code:
            end = next(at for at in range(place, len(lines) + 1) if lines[at : at + 1] in ([], [""]))
            code = textwrap.dedent("\n".join(lines[place:end]))
            found.append(Snippet(page, begin, "sh", code + "\n", mark))
            place, mark = end, None
        elif (said := MARK.fullmatch(line)) is not None:
            mark = said[1]
        if line and place < len(lines):
            before = lines[place] or before
        place += 1
    return found


ALL = {page: _snippets(page) for page in PAGES}


def _pages(*languages: str) -> list[Path]:
    return [page for page, found in ALL.items() if any(one.language in languages for one in found)]


def _of(page: Path, *languages: str) -> list[Snippet]:
    return [one for one in ALL[page] if one.language in languages and one.mark is None]


def _name(page: Path) -> str:
    return page.name


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what readers have: models, adapters, code of their own, and the examples."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "models").mkdir()
    written = "\n".join(one.text for page in PAGES for one in _of(page, "python", "yaml"))
    for name in {"demo", *re.findall(r"\bmodels/([\w-]+)", written)}:
        (folder / "models" / name).symlink_to(DEMO)
    for name in set(re.findall(r"\badapters/([\w-]+)", written)):
        (folder / "adapters" / name).mkdir(parents=True)
        save_adapter(folder / "adapters" / name, AutoModelForCausalLM.from_pretrained(DEMO), ("q_proj",))
    for module in (ROOT / "docs" / "examples").glob("*.py"):
        shutil.copy(module, folder)
    (folder / "docs").symlink_to(ROOT / "docs")
    (folder / "my_lab").mkdir()
    for name, code in LAB.items():
        (folder / "my_lab" / f"{name}.py").write_text(textwrap.dedent(code))
    write_keys(folder / "pageant.key", make_keys())
    for page in PAGES:
        for one in _of(page, "python", "yaml"):
            if (place := _file_of(one.text)) is not None and page.name != "README.md":
                (folder / place).write_text(one.text)
    return folder


def _file_of(code: str) -> str | None:
    """Return the file that a snippet's first line names."""
    first = re.match(r"# ([\w/]+\.(?:py|yaml))\n", code)
    return first[1] if first else None


@pytest.fixture(scope="module")
def server(reader: Path) -> Iterator[str]:
    """The server that the README starts, at a free port; its address."""
    command = [sys.executable, "-m", "pageant", "serve", "models/demo", "--port", "0", "--set", "threads=1"]
    with subprocess.Popen(command, cwd=reader, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        yield next(found[0] for line in process.stderr if (found := re.findall(r"http://[\d.]+:\d+", line)))
        process.terminate()
        process.stderr.read()


@pytest.mark.parametrize("page", _pages("python"), ids=_name)
def test_python_runs(page: Path, reader: Path, tmp_path: Path, request: pytest.FixtureRequest):
    scripts = []
    for number, one in enumerate(_of(page, "python")):
        if _file_of(one.text) is not None:
            continue
        code = one.text
        if ":8000" in code:
            code = code.replace("http://127.0.0.1:8000", request.getfixturevalue("server"))
        scripts.append(tmp_path / f"{number}.py")
        scripts[-1].write_text(code)
    driver = tmp_path / "driver.py"
    driver.write_text(f"import sys\nsys.path.insert(0, {str(reader)!r})\n{RUN_ALL}")
    result = subprocess.run(
        [sys.executable, driver, *scripts],
        cwd=reader,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {WILLING: "1"},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    said = re.split(r"^=== .*/(\d+)\.py\n", result.stdout, flags=re.MULTILINE)
    for number, output in zip(said[1::2], said[2::2], strict=True):
        expected = ANSWERS.get((page.name, int(number)), "")
        assert re.search(expected, output, re.DOTALL), f"snippet {number} printed {output!r}"


@pytest.mark.parametrize("page", _pages("yaml"), ids=_name)
def test_topologies_are_sound(page: Path, reader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(reader)
    monkeypatch.syspath_prepend(reader)
    for one in _of(page, "yaml"):
        path = reader / f"{tmp_path.name}-{one.line}.yaml"
        path.write_text(one.text)
        has_models = re.search(r"^models?:", one.text, re.MULTILINE)
        resolve_topology(topology_of(None if has_models else "models/demo", path, {}))


def _commands(one: Snippet) -> list[str]:
    """Return a block's commands; continued lines are one."""
    joined = re.sub(r"\\\n\s*", "", one.text)
    return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


SHELL = ("sh", "bash", "")
COMMAND = re.compile(r"^\(?(cd|cp|pageant|\.venv/bin/\w+|python|scripts/|curl|claude|pip|export|pytest)\b")


def _is_shell(one: Snippet) -> bool:
    return bool(COMMAND.match(one.text))


SHELL_PAGES = [page for page in _pages(*SHELL) if any(map(_is_shell, _of(page, *SHELL)))]


@pytest.mark.parametrize("page", SHELL_PAGES, ids=_name)
def test_commands_run(page: Path, reader: Path, request: pytest.FixtureRequest):
    for topology in (one.text for one in _of(page, "yaml") if _file_of(one.text) == "topology.yaml"):
        (reader / "topology.yaml").write_text(topology)
    folder = reader
    for one in filter(_is_shell, _of(page, *SHELL)):
        for line in _commands(one):
            within = folder
            for part in line.strip("() ").split("&&"):
                within = _carry_out(part.strip(), within, request)
            folder = folder if line.startswith("(") else within


def _carry_out(part: str, folder: Path, request: pytest.FixtureRequest) -> Path:
    """Run a command, or see that it could be; return the folder that the next one runs in."""
    program, *given = shlex.split(part.partition(" > ")[0], comments=True)
    if program == "cd":
        return folder / given[0]
    if program == "cp":
        _run([program, *given], folder)
    elif program == "curl":
        part = part.replace("http://127.0.0.1:8000", request.getfixturevalue("server"))
        _run(["bash", "-c", part], folder)
    elif program == "python":
        assert given[0] == "-m" and importlib.util.find_spec(given[1]) is not None, part
    elif program.startswith("scripts/"):
        assert (ROOT / program).exists(), part
    elif program.endswith("pageant"):
        _see_that_it_is_known(given)
        if given[0] == "keys":
            (folder / given[1]).unlink(missing_ok=True)
        if given[0] not in READ_ONLY and "cuda" not in part:
            _run([sys.executable, "-m", "pageant", *(word for word in given if "[" not in word)], folder)
    else:
        assert program in OTHER_PROGRAMS, f"{part!r}: nothing here says what {program} is"
    return folder


def _see_that_it_is_known(given: list[str]) -> None:
    """Have the command line read these words, without carrying them out."""
    read_words([word for word in given if "[" not in word or " " in word])


def _run(command: list[str], folder: Path) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, f"{command}: {result.stderr[-3000:]}"


def test_few_snippets_are_left_out_each_with_a_reason():
    marked = [one for found in ALL.values() for one in found if one.mark is not None]
    assert all(len(one.mark or "") > 10 for one in marked)
    assert len(marked) <= MARKED_MAX, [(one.page.name, one.line) for one in marked]


def test_every_block_of_code_is_of_a_kind_that_is_run():
    """A block without a language is a command or a drawing; another language would run nowhere."""
    known = {"python", "yaml", "sh", "toml", ""}
    strange = [(one.page.name, one.line, one.language) for found in ALL.values() for one in found]
    assert [place for place in strange if place[2] not in known] == []
