"""Plugins of an installed package: found by their names, listed, switched off, gone with the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "plugin"
DEMO = Path(__file__).parents[2] / "models" / "demo"
LOOK = """
import json
from pageant.actors.router.policies import make_policy as make_routing
from pageant.actors.scheduler.policies import make_policy
from pageant.models.architectures import known
from pageant.protocol.errors import TopologyError
from pageant.protocol.plugins import plugins
from pageant.scripts.commands.doctor import _plugins

def tried(call):
    try:
        return type(call()).__name__
    except TopologyError as error:
        return str(error)

print(json.dumps({
    "listed": [(one.group, one.name, one.package, one.version) for one in plugins()],
    "policy": tried(lambda: make_policy("coin")),
    "routing": tried(lambda: make_routing("coin")),
    "architecture": getattr(known("CoinForCausalLM"), "name", None),
    "doctor": _plugins().found,
}))
"""
POLICIES = """
import asyncio, json
from types import SimpleNamespace
from pageant.actors.http.swapping import _present
from pageant.actors.router.policies import make_policy as make_routing
from pageant.actors.scheduler.policies import make_policy
from pageant.protocol.errors import TopologyError

def tried(make, name):
    try:
        return type(make(name)).__name__
    except TopologyError as error:
        return str(error)

async def ask(*_, timeout):
    return SimpleNamespace(actors=())

print(json.dumps({
    "scheduling": {name: tried(make_policy, name) for name in ("lottery", "nearest", "both")},
    "routing": {name: tried(make_routing, name) for name in ("lottery", "nearest", "both")},
    "over HTTP": asyncio.run(_present(ask)).policies,
}))
"""
GENERATE = """
import sys
import pageant

params = pageant.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
settings = dict(placement="one", dtype="float32", threads=1, num_blocks=32, max_model_len=128, progress=False)
with pageant.LLM(sys.argv[1], policy=sys.argv[2], **settings) as llm:
    print([output.outputs[0].token_ids for output in llm.generate(["So", "And then"], params)])
"""


def run(script: str, *arguments: str, at: Path | None, **variables: str) -> str:
    paths = [str(at)] if at is not None else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def looked(at: Path | None, **variables: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(LOOK, at=at, **variables))
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example package by pip, into a folder of its own."""
    source, target = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("installed")
    shutil.copytree(EXAMPLE, source)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--no-index", "--target", str(target), str(source)),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return target


def test_names_are_found_while_the_package_is_installed(installed: Path) -> None:
    found = looked(installed)
    assert found["listed"] == [
        ["policies", "coin", "pageant-coin", "0.1"],
        ["architectures", "CoinForCausalLM", "pageant-coin", "0.1"],
    ]
    assert (found["policy"], found["architecture"]) == ("Coin", "CoinForCausalLM")
    assert "no policy 'coin'; expected one of: least" in found["routing"], "it is a scheduling policy"
    assert (
        found["doctor"]
        == "coin (policies, pageant-coin 0.1), CoinForCausalLM (architectures, pageant-coin 0.1)"
    )


def test_scheduling_and_routing_policies_have_names_of_their_own(tmp_path: Path) -> None:
    about = tmp_path / "lab-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[pageant.policies]\nlottery = lab_policies:Lottery\nboth = lab_policies:Lottery\n"
        "[pageant.routing]\nnearest = lab_policies:Nearest\nboth = lab_policies:Nearest\n"
    )
    (tmp_path / "lab_policies.py").write_text(
        "class Lottery:\n    order = victim = print\nclass Nearest:\n    choose = print\n"
    )
    found = json.loads(run(POLICIES, at=tmp_path))
    scheduling, routing = found["scheduling"], found["routing"]
    assert (scheduling["lottery"], scheduling["both"]) == ("Lottery", "Lottery")
    assert (routing["nearest"], routing["both"]) == ("Nearest", "Nearest")
    assert "no policy 'nearest'" in scheduling["nearest"] and "lottery" in scheduling["nearest"]
    assert "no policy 'lottery'" in routing["lottery"] and "both" in routing["lottery"]
    assert {"lottery", "both"} < set(found["over HTTP"]) and "nearest" not in found["over HTTP"]


@pytest.mark.parametrize("variables", [{"PAGEANT_PLUGINS": "none"}, {"PAGEANT_PLUGINS": "another"}, None])
def test_names_are_unknown_where_it_is_switched_off_or_not_installed(
    installed: Path, variables: dict[str, str] | None
) -> None:
    found = looked(None) if variables is None else looked(installed, **variables)
    assert found["listed"] == [] and found["architecture"] is None and found["doctor"] == "none"
    assert "no policy 'coin'; expected fcfs" in found["policy"]


def test_a_package_is_chosen_by_any_form_of_its_name(installed: Path) -> None:
    assert looked(installed, PAGEANT_PLUGINS="another, Pageant_Coin")["policy"] == "Coin"


def test_a_plugin_that_cannot_be_imported_is_an_error_with_its_package(
    installed: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(installed, broken)
    (broken / "pageant_coin" / "policy.py").write_text("import no_such_module\n")
    found = looked(broken)
    assert "plugin 'coin' of pageant-coin 0.1: loading pageant_coin.policy:Coin failed" in found["policy"]
    assert found["architecture"] == "CoinForCausalLM", "what is not named is not imported"


def test_an_engine_serves_a_plugins_architecture_by_a_plugins_policy(installed: Path, tmp_path: Path) -> None:
    """The tokens are those of Llama, as which the checkpoint is known without the plugin."""
    model = tmp_path / "coin"
    shutil.copytree(DEMO, model, ignore=shutil.ignore_patterns("draft", "__pycache__"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["CoinForCausalLM"]}))
    assert run(GENERATE, str(model), "coin", at=installed) == run(GENERATE, str(DEMO), "fcfs", at=None)
