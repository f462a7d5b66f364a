"""The latency benchmark, in small."""

import json

import pytest
from typer.testing import CliRunner

from pageant.scripts.bench.latency import Stream
from pageant.scripts.cli import app
from pageant.scripts.engine_options import DEMO_MODEL


def test_streams_get_their_tokens_between_the_chunks_of_a_long_prompt():
    small = ["--prompt", "300", "--streams", "2", "--rounds", "1", "--max-num-batched-tokens", "64"]
    arguments = [
        "bench",
        "latency",
        *small,
        "--model",
        f"{DEMO_MODEL}/.",  # the demo by its own name stands for a larger model
        "--placement",
        "one",
        "--set",
        "kv_cache_memory=64MiB",
    ]
    result = CliRunner().invoke(app, [*arguments, "--json", "-"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (row,) = found["rounds"]
    assert row["chunks"] == 5, "of 64 tokens"
    assert 0 < row["chunk_median_ms"] <= row["chunk_p99_ms"]
    assert 0 < row["between_tokens_median_ms"] <= row["between_tokens_p99_ms"]
    assert found["ratio"] == pytest.approx(row["between_tokens_p99_ms"] / row["chunk_p99_ms"], rel=0.05)


def test_the_gaps_that_count_reach_from_before_the_prompt_to_after_it():
    stream = Stream([0.0, 1.0, 2.5, 4.5, 5.0])
    assert stream.gaps(1.5, 3.0) == [1.5, 2.0]
    assert stream.gaps(0.0, 5.0) == [1.0, 1.5, 2.0, 0.5]
