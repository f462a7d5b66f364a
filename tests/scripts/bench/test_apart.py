"""The benchmark of prompts that are computed apart, in small."""

import json

from typer.testing import CliRunner

from pageant.protocol.errors import BadRequest
from pageant.scripts.bench.apart import ALONE, APART, TWO
from pageant.scripts.cli import app
from pageant.scripts.engine_options import DEMO_MODEL


def test_each_layout_serves_streams_and_prompts_and_one_engine_is_what_the_others_are_compared_with():
    small = ["--prompt", "200", "--prompts", "1", "--streams", "1", "--rounds", "1", "--store", "16MiB"]
    # The demo by its own name would stand for a larger model.
    model = ["--model", f"{DEMO_MODEL}/.", "--placement", "one", "--set", "kv_cache_memory=64MiB"]
    result = CliRunner().invoke(app, ["bench", "apart", *small, *model, "--json", "-"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found["layouts"]) == set(found["rounds"]) == {ALONE, TWO, APART}
    assert set(found["layouts"][ALONE]["ratio"].values()) == {1.0}
    assert all(value > 0 for each in found["layouts"].values() for value in each["median"].values())


def test_an_odd_number_of_cores_is_refused():
    result = CliRunner().invoke(app, ["bench", "apart", "--cores", "3"])
    assert isinstance(result.exception, BadRequest) and "even number of cores" in str(result.exception)
