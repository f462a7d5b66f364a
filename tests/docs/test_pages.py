"""Examples of the README and the pages of docs are run as they stand there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import pageant
from pageant.actors.client.cast import DEFAULT_CAST
from pageant.actors.http.server import HttpServer
from pageant.actors.runtime.classes import load_object
from pageant.actors.runtime.topology import FORM

ROOT = Path(pageant.__file__).parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder in which the examples find what they name: the demo model and the example modules."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "demo").symlink_to(ROOT / "models" / "demo")
    for module in (ROOT / "docs" / "examples").glob("*.py"):
        shutil.copy(module, tmp_path)
    return tmp_path


def _run(code: str, folder: Path) -> str:
    script = folder / "example.py"
    script.write_text(code)
    result = subprocess.run(
        [sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_page_of_topologies_has_every_key():
    actors = [load_object(place, "") for place in DEFAULT_CAST.classes.values()]
    keys = (
        FORM | DEFAULT_CAST.extra_settings | {key for one in actors for key in one.Options.__struct_fields__}
    )
    text = (ROOT / "docs" / "topologies.md").read_text()
    tables = " ".join(re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE))
    assert keys - set(re.findall(r"`(\w+)(?:\.NAME)?`", tables)) == set()


def test_the_page_of_serving_has_every_option_of_the_server():
    """Options that other pages explain, and what the cast fills in, are left out."""
    elsewhere = {
        "detailed_traces",
        "max_loaded_models",
        "otlp_traces_endpoint",
        "traces_sampled",
        "while_asleep",
    }
    options = {*HttpServer.Options.__struct_fields__} - elsewhere - {"served"}
    text = (ROOT / "docs" / "serving.md").read_text()
    told = {name.replace("-", "_") for name in re.findall(r"`(?:--)?(?:no-)?([\w-]+)(?:: false)?`", text)}
    assert options - told == set()


def test_the_page_of_serving_has_every_route():
    """Routes that are no more than other spellings of one that is there are told together."""
    text = (ROOT / "docs" / "serving.md").read_text()
    told = " ".join(re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE))
    routes = set[str]()
    for source in sorted((ROOT / "actors" / "http").rglob("*.py")):
        for call in re.findall(
            r"@(?:get|post|delete|websocket)\(([^@]*?)\)\n    async def", source.read_text()
        ):
            routes |= set(re.findall(r'"(/[\w/{}:-]*)"', call))
    assert {"/health", "/schedulers/policy", "/v1/chat/completions"} <= routes
    spelled = {re.sub(r"\{name:\w+\}", "ID", route) for route in routes - {"/page/{name:str}"}}
    missing = {route for route in spelled if f"{route.removeprefix('/v1').removeprefix('/v2')}" not in told}
    assert missing - {"/v1/models/ID"} == set()


def test_the_actor_of_the_writing_page_counts_wherever_it_lives(folder: Path):
    page = ROOT / "docs" / "writing-an-actor.md"
    (folder / "my_lab").mkdir()
    (folder / "my_lab" / "counting.py").write_text(_blocks(page, "python")[0])
    (folder / "topology.yaml").write_text(_blocks(page, "yaml")[0])
    asking = _blocks(page, "python")[1]
    for placement in ("one", "each"):
        call = asking.replace(
            'topology="topology.yaml"', f'topology="topology.yaml", placement="{placement}"'
        )
        assert _run(call, folder).strip() == "Counted(total=15)"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_file_that_a_page_names_is_there(page: Path):
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    named = re.findall(r"`((?:actors|protocol|kernels|models|scripts|tests|docs)/[\w/.-]+)`", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [name for name in named if not (ROOT / name).exists()]
    assert missing == []


def test_kv_memorys_examples_run(folder: Path):
    settings, onlooker = _blocks(ROOT / "docs" / "kv-memory.md", "python")
    code = (
        settings.replace("/var/tmp", str(folder))
        + "\nwith llm:\n    llm.generate('Hi', progress=False)\n    print(len(llm.pool_statistics().tiers))\n"
    )
    assert _run(code, folder).strip() == "2"
    (folder / "my_onlooker.py").write_text(onlooker)
    code = """
    import asyncio, pageant

    async def main():
        actors = {"onlooker": {"class": "my_onlooker:Onlooker"}}
        async with pageant.Engine("models/demo", actors=actors, placement="one") as engine:
            await engine.complete("hello", pageant.SamplingParams(max_tokens=20))
            await engine.complete("hello", pageant.SamplingParams(max_tokens=20))

    asyncio.run(main())
    """
    _run(textwrap.dedent(code), folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_snippet_of_a_page_imports_what_it_uses(page: Path):
    """Names that nothing defines, as a reader would meet them who copies a page's snippets one after another."""
    code = "\n".join(_blocks(page, "python"))
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "F821,E9",
        "--output-format",
        "concise",
        "-",
    ]
    found = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
