"""Messages of commands about what they cannot do."""

from __future__ import annotations

import json
import pickle
import sys
from random import Random

import pytest
import typer
from typer.testing import CliRunner

from pageant.actors.runtime.classes import load_object
from pageant.kernels.cpu.choices import LAYOUTS
from pageant.kernels.cpu.functions import TYPES
from pageant.kernels.cpu.levels import LEVELS
from pageant.protocol.errors import RemoteError, TopologyError
from pageant.scripts.cli import app
from pageant.scripts.commands import serve
from pageant.scripts.commands.doctor import _found
from pageant.scripts.commands.simulate import parse_seeds
from pageant.scripts.engine_options import _as_arguments, _assigned
from pageant.scripts.simulate.topology import draw_engine


@pytest.mark.parametrize(
    ("given", "environment", "keys"),
    [
        ((), {}, None),
        ((), {"VLLM_API_KEY": "a"}, ["a"]),
        ((), {"VLLM_API_KEY": "a", "PAGEANT_API_KEY": "b"}, ["b"]),
        (("--api-key", "c", "--api-key", "d"), {"VLLM_API_KEY": "a"}, ["c", "d"]),
    ],
)
def test_a_servers_keys_may_stand_in_the_environment(monkeypatch, given, environment, keys):
    served = {}
    monkeypatch.setattr(serve, "serve", lambda *arguments: served.update(arguments[2]))
    result = CliRunner().invoke(app, ["serve", "somewhere", *given], env=environment)
    assert result.exit_code == 0, result.output
    assert served["api_keys"] == keys


@pytest.mark.parametrize(
    ("given", "environment", "options"),
    [
        ((), {}, {"admin_routes": None, "runtime_adapters": None}),
        ((), {"VLLM_SERVER_DEV_MODE": "1"}, {"admin_routes": True, "runtime_adapters": None}),
        ((), {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}, {"admin_routes": None, "runtime_adapters": True}),
        (("--no-admin-routes",), {"VLLM_SERVER_DEV_MODE": "1"}, {"admin_routes": False}),
        (("--admin-routes", "--runtime-adapters"), {}, {"admin_routes": True, "runtime_adapters": True}),
        ((), {}, {"page": None, "demo": None}),
        (("--no-page", "--demo"), {}, {"page": False, "demo": True}),
    ],
)
def test_an_operators_routes_are_turned_on_by_options_or_by_vllms_variables(
    monkeypatch, given, environment, options
):
    served = {}
    monkeypatch.setattr(serve, "serve", lambda *arguments: served.update(arguments[2]))
    result = CliRunner().invoke(app, ["serve", "somewhere", *given], env=environment)
    assert result.exit_code == 0, result.output
    assert {name: served[name] for name in options} == options


def test_the_doctor_lists_which_kernel_computes_which_product():
    listed = json.loads(CliRunner().invoke(app, ["doctor", "--kernels", "--json"]).output)
    assert listed["level"] in LEVELS
    assert {(row["weights"], row["x"]) for row in listed["products"]} == {
        (layout, dtype) for layout in LAYOUTS for dtype in TYPES
    }
    assert listed["level"] in CliRunner().invoke(app, ["doctor", "--kernels"]).output


def test_the_doctor_goes_on_where_a_check_cannot_be_made():
    def _torch():
        raise ImportError("a line\nlibtorch.so: cannot open shared object file")

    finding = _found(_torch)
    assert (finding.what, finding.good) == ("torch", False)
    assert finding.means == "libtorch.so: cannot open shared object file"


@pytest.mark.parametrize("seeds", ["5..1", "3..3", "many"])
def test_a_range_without_seeds_is_no_success(seeds):
    with pytest.raises(typer.BadParameter, match="expected"):
        parse_seeds(seeds)
    assert parse_seeds("3..5") == range(3, 5)


def test_a_setting_that_is_no_yaml_is_shown():
    with pytest.raises(typer.BadParameter, match="whose value is no YAML"):
        _assigned("a.b=[1")
    assert _assigned("a.b=[1]") == {"a": {"b": [1]}}


def test_a_module_may_stand_beside_the_topology_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "a_policy_beside.py").write_text("class Policy: ...\n")
    (tmp_path / "beside" / "lab.yaml").write_text("model: x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(TopologyError, match="no module 'a_policy_beside' here or installed"):
        load_object("a_policy_beside:Policy", "place")
    _as_arguments({"topology": "beside/lab.yaml", "set_": None})
    assert load_object("a_policy_beside:Policy", "place").__name__ == "Policy"


def test_a_simulation_without_the_actor_that_was_meant_is_refused():
    with pytest.raises(TopologyError, match=r"no actor 'schedulr'.*scheduler"):
        draw_engine(Random(1), 1, {"schedulr": "m:C"})


@pytest.mark.parametrize("error", [TopologyError("a.b", "no"), RemoteError("x", "ValueError", "no")])
def test_errors_come_back_from_other_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
