"""The benchmark of the store, in small."""

import json

from typer.testing import CliRunner

from pageant.scripts.bench.store import measure_copies
from pageant.scripts.cli import app
from pageant.scripts.copies import Copies
from pageant.scripts.engine_options import DEMO_MODEL


def test_each_measurement_gives_a_figure():
    small = ["--blocks", "2", "--prompt", "128", "--output", "2", "--rounds", "2", "--store", "8MiB"]
    engine = ["--model", f"{DEMO_MODEL}/.", "--placement", "one", "--threads", "1", "--max-model-len", "192"]
    result = CliRunner().invoke(app, ["bench", "store", *small, *engine, "--json", "-"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert all(found["copies"][way]["gb_per_second"] > 0 for way in ("save", "restore", "memcpy"))
    assert found["copies"]["memcpy"]["of_memcpy"] == 1
    assert all(found["fetches"][way]["gb_per_second"] > 0 for way in ("plain", "encrypted"))
    assert found["first_token"]["restored_tokens"] == 112
    assert found["first_token"]["times_sooner"] > 0 and found["no_reuse"]["of_none"] > 0


def test_what_is_restored_is_what_was_saved():
    copies = Copies(3, layers=2, heads=2, head_bytes=64)
    before = [cache.copy() for cache in copies.caches]
    copies.move("save")
    for cache in copies.caches:
        cache[:] = 0
    copies.move("restore")
    assert all((one == other).all() for one, other in zip(copies.caches, before, strict=True))
    assert measure_copies(2, 1, layers=1, heads=2, head_bytes=64)["bytes"] == 2 * 2 * 2 * 64
