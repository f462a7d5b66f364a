"""The prefix benchmark, in small."""

import json

from typer.testing import CliRunner

from pageant.scripts.bench.prefix import Work
from pageant.scripts.cli import app
from pageant.scripts.engine_options import DEMO_MODEL


def test_both_engines_serve_what_is_shared_and_what_is_not():
    small = ["--requests", "4", "--prefix", "64", "--own", "4", "--output", "2"]
    turns = ["--rounds", "2", "--pairs", "3", "--unshared-requests", "2"]
    # The demo by its own name would stand for a model of 0.6 billion parameters.
    engine = ["--model", f"{DEMO_MODEL}/.", "--placement", "one", "--set", "kv_cache_memory=64MiB"]
    result = CliRunner().invoke(app, ["bench", "prefix", *small, *turns, *engine, "--json", "-"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [len(found[kind]["pairs"]) for kind in ("shared", "unshared")] == [2, 3]
    assert all(found[kind]["without_over_with"] > 0 for kind in ("shared", "unshared"))


def test_no_engine_gets_the_same_prompt_twice():
    work = Work(requests=3, prefix=8, own=2)
    first, second = work.shared(), work.shared()
    assert len({tuple(prompt[:8]) for prompt in first}) == 1 and first[0][:8] != second[0][:8]
    assert all(len(prompt) == 10 for prompt in first)
    assert len({tuple(prompt) for prompt in work.unshared(5)}) == 5
