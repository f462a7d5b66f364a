"""The house rules of the architecture: who imports whom, what is loaded when, what is banned where."""

from __future__ import annotations

import ast
import importlib.metadata
import itertools
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import pageant

ROOT = Path(pageant.__file__).parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOT_SHIPPED = "scripts/demo_model"
SOURCE_FOLDERS = ("protocol", "actors", "kernels", "models", "scripts")


def _sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


# Imports.


def test_each_floor_imports_only_from_the_floors_below():
    result = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--config", ROOT / "pyproject.toml"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


def test_torchvision_is_never_a_dependency():
    """One that was built for another torch breaks transformers, so no part of Pageant may bring it."""
    project = PYPROJECT["project"]
    named = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    assert named and not [one for one in named if re.match("torchvision", one)]
    pattern = re.compile(r"^\s*(import|from) torchvision\b", re.MULTILINE)
    assert not [path for path in _sources(*SOURCE_FOLDERS) if pattern.search(path.read_text())]


@pytest.mark.parametrize(
    "module",
    [
        "pageant",
        "pageant.protocol.schema",
        "pageant.actors.runtime.process",
        "pageant.actors.runtime.cluster",
        "pageant.actors.scheduler.actor",
        "pageant.actors.blocks.actor",
        "pageant.actors.tokenizer",
        "pageant.actors.detokenizer.actor",
        "pageant.actors.executor.actor",
        "pageant.actors.client.engine",
        "pageant.actors.client.llm",
        "pageant.models.checkpoint",
        "pageant.kernels",
        "pageant.scripts.cli",
    ],
)
def test_only_an_executor_that_starts_loads_torch(module):
    heavy = _run(
        f"import sys, {module}; print([m for m in ('torch', 'transformers', 'triton') if m in sys.modules])"
    )
    assert heavy == "[]"


def test_importing_the_package_imports_nothing_else_of_it():
    loaded = _run("import sys, pageant; print([m for m in sys.modules if m.startswith('pageant.')])")
    assert loaded == "[]"


def test_every_public_name_is_there():
    for name in pageant.__all__:
        assert getattr(pageant, name) is not None
    assert set(dir(pageant)) == set(pageant.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = pageant.Nothing


def test_tests_use_nothing_of_the_benchmarks_but_those_of_the_benchmarks_themselves():
    own = ROOT / "tests" / "scripts" / "bench"
    found = [
        str(path.relative_to(ROOT))
        for path in _sources("tests")
        if own not in path.parents and "pageant.scripts." + "bench" in path.read_text()
    ]
    assert found == []


def test_the_version_is_the_same_everywhere():
    assert pageant.__version__ == PYPROJECT["project"]["version"] == importlib.metadata.version("pageant")


# Rooms of the C++ kernels, with those that each may include.
ROOMS = {
    "base": set(),
    "gemm": {"base"},
    "attention": {"base"},
    "layers": {"base"},
    "collectives": {"base"},
    "sampling": {"base", "gemm"},
}
CSRC = ROOT / "kernels" / "cpu" / "csrc"


def _wrong_includes(folder: Path) -> list[str]:
    """Return includes of C++ sources below a folder that leave their rooms' floors."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        room = path.relative_to(folder).parts[0]
        for included in re.findall(r'^#include "(.*)"$', path.read_text(), re.MULTILINE):
            other = included.split("/")[0]
            if room not in ROOMS or other not in {room, *ROOMS[room]} or not (folder / included).is_file():
                found.append(f"{path.relative_to(folder)} includes {included}")
    return found


def test_rooms_of_the_cpp_kernels_include_only_those_below():
    assert {path.name for path in CSRC.iterdir()} == set(ROOMS)
    assert _wrong_includes(CSRC) == []


def test_an_include_of_another_room_is_found(tmp_path: Path):
    for room in ("base", "gemm"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "one.h").write_text("")
    (tmp_path / "base" / "two.h").write_text(
        '#include "base/one.h"\n#include "gemm/one.h"\n#include "one.h"\n'
    )
    assert _wrong_includes(tmp_path) == ["base/two.h includes gemm/one.h", "base/two.h includes one.h"]


# The packaging traps.


def test_the_root_has_no_conftest_and_the_tests_are_no_packages():
    assert not (ROOT / "conftest.py").exists()
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_modules_are_loaded_once_under_the_packages_name():
    twice = [
        name for name in sys.modules if name.startswith((f"{ROOT.name}.protocol", f"{ROOT.name}.actors"))
    ]
    assert ROOT.name == "pageant" or twice == []


def test_every_package_is_listed_for_the_wheel_but_the_demo_models_training():
    folders = {path.parent for path in _sources(*SOURCE_FOLDERS)} - {ROOT / NOT_SHIPPED}
    packages = {"pageant", *(".".join(("pageant", *folder.relative_to(ROOT).parts)) for folder in folders)}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == packages


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """The names of the files in an sdist built from this tree, and in a wheel built from that sdist."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(["git", "clone", "-q", ROOT, folder / "any-name"], check=True)

    def build(kind: str, source: Path) -> Path:
        code = f"from setuptools import build_meta as b; import sys; print(b.build_{kind}(sys.argv[1]))"
        result = subprocess.run(
            [sys.executable, "-c", code, folder], cwd=source, capture_output=True, text=True, check=True
        )
        return folder / result.stdout.split()[-1]

    with tarfile.open(build("sdist", folder / "any-name")) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [source] = (folder / "unpacked").iterdir()
    inside = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    with zipfile.ZipFile(build("wheel", source)) as archive:
        return inside, set(archive.namelist())


@pytest.fixture
def wheel(built: tuple[set[str], set[str]]) -> set[str]:
    """The names of the files in the wheel."""
    return built[1]


def test_an_sdist_holds_the_docs_and_the_tested_versions_but_neither_the_tests_nor_the_training(built):
    sdist, _ = built
    assert {"constraints.txt", "README.md", "LICENSE", "docs/tutorial.md", "mkdocs.yml"} <= sdist
    assert {"py.typed", "models/demo/model.safetensors"} <= sdist
    assert not [name for name in sdist if name.startswith((NOT_SHIPPED, "tests/", ".venv", ".ci"))]


def test_a_wheel_holds_every_module_the_c_sources_and_the_demo_model(wheel: set[str]):
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    modules = {
        f"pageant/{name}" for name in tracked if name.endswith(".py") and name.startswith(SOURCE_FOLDERS)
    }
    left_out = {name for name in modules if name.startswith(f"pageant/{NOT_SHIPPED}/")}
    assert modules - wheel == left_out and left_out
    demo = {f"pageant/{name}" for name in tracked if name.startswith("models/demo/")}
    assert demo and demo - wheel == set()
    page = {f"pageant/{name}" for name in tracked if name.startswith("actors/http/page/static/")}
    assert page and page - wheel == set()
    sources = {f"pageant/{name}" for name in tracked if name.startswith("kernels/cpu/csrc/")}
    assert sources and sources - wheel == set()
    assert "pageant/py.typed" in wheel


# Bans. What is banned, where it is allowed after all, and what to use instead.

ALLOWED = {
    "actors/runtime/clock.py": {"time"},
    "actors/executor/guided/masks.py": {"threading"},
    "actors/runtime/cell.py": {"random"},
    "actors/runtime/platform.py": {"concurrent.futures"},
    "actors/runtime/node.py": {"random"},
    "actors/runtime/actor.py": {"random"},
    "actors/runtime/tracing.py": {"random"},
    "actors/runtime/launcher.py": {"threading"},
    # Ray's calls block, and no actor makes them.
    "actors/runtime/ray_launcher.py": {"concurrent.futures"},
    # Threads of actors block in these, and a child process is watched by the host's own clock.
    "actors/runtime/isolation.py": {"threading", "time"},
    "actors/runtime/isolated.py": {"threading"},
    "actors/runtime/loop_thread.py": {"threading", "concurrent.futures"},
    "actors/runtime/process.py": {"threading"},
    "actors/executor/groups/words_ahead.py": {"threading"},
    "actors/runtime/simulation/faults.py": {"random"},
    "actors/runtime/simulation/network.py": {"random"},
    "actors/runtime/simulation/processes.py": {"random"},
    "actors/runtime/simulation/simulation.py": {"random"},
    "actors/runtime/transport/addresses.py": {"socket"},
    # Ranks of a group meet in threads of executors and in memory of their host.
    "kernels/collectives/local.py": {"threading"},
    "kernels/collectives/mirrored_store.py": {"threading"},
    "kernels/collectives/segment.py": {"secrets"},
    "kernels/collectives/waiting.py": {"threading"},
    "kernels/cpu/recording.py": {"threading"},
    "actors/client/batching.py": {"concurrent.futures"},
    "actors/client/engine.py": {"concurrent.futures"},
    "actors/client/replicas.py": {"concurrent.futures"},
    "actors/client/operating.py": {"concurrent.futures"},
    "actors/client/session.py": {"concurrent.futures"},
    "actors/http/listening.py": {"socket"},
}
INSTEAD = {
    "time": "self.clock",
    "datetime.now": "self.clock.wall()",
    "random": "self.random",
    "secrets": "self.random",
    "uuid": "names given by the frontend",
    "threading": "self.offload",
    "multiprocessing": "a node of its own",
    "concurrent.futures": "self.offload",
    "asyncio.to_thread": "self.offload",
    "socket": "the runtime's transport",
    "pickle": "the codec",
    "marshal": "the codec",
    "shelve": "the codec",
    "dill": "the codec",
    "cloudpickle": "the codec",
    "torch.load": "safetensors",
    "eval": "nothing: no code comes from outside",
    "exec": "nothing: no code comes from outside",
}


def _banned_uses(path: Path) -> set[str]:
    """Banned names that a file imports or calls."""
    used: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            used |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            used.add(f"{name}.{node.attr}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            used.add(node.func.id)
    return used & set(INSTEAD)


@pytest.mark.parametrize(
    "path", _sources("protocol", "actors", "kernels", "models"), ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_direct_clock_randomness_thread_or_pickling_below_scripts(path: Path):
    found = _banned_uses(path) - ALLOWED.get(str(path.relative_to(ROOT)), set())
    assert not found, "; ".join(f"{name} is banned here: use {INSTEAD[name]}" for name in sorted(found))


def test_the_ban_notices_every_way_of_use(tmp_path: Path):
    source = tmp_path / "sinner.py"
    source.write_text(
        "import time, pickle\nfrom random import Random\nimport asyncio, torch, datetime\n"
        "asyncio.to_thread(print)\ntorch.load('x')\ndatetime.datetime.now()\neval('1')\n"
    )
    found = _banned_uses(source)
    assert found == {"time", "pickle", "random", "asyncio.to_thread", "torch.load", "datetime.now", "eval"}


def test_every_exemption_is_needed():
    for name, allowed in ALLOWED.items():
        assert allowed <= _banned_uses(ROOT / name), f"{name} does not use all of {allowed}"
