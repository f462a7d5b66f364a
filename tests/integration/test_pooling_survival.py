"""Whatever process is killed while texts are embedded, each of them gets the embedding that it would have got."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pageant
from tests.pooled_models import WORDS, save_model

SETTINGS = {
    "dtype": "float32",
    "threads": 1,
    "max_num_batched_tokens": 160,
    "max_num_seqs": 4,
    "heartbeat_seconds": 0.5,
    "suspicion_seconds": 3.0,
    "progress": False,
}
NUM_TEXTS = 400


def texts() -> list[str]:
    chosen = np.random.default_rng(7).integers(0, len(WORDS), (NUM_TEXTS, 60))
    return [" ".join(WORDS[index] for index in row) for row in chosen]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    save_model(folder, "bert", pooling="mean")
    return folder


@pytest.fixture(scope="module")
def right(path: Path) -> list[list[float]]:
    with pageant.LLM(path, placement="one", **SETTINGS) as llm:
        return [one.outputs.embedding for one in llm.embed(texts())]


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[pageant.LLM]:
    with pageant.LLM(path, placement="each", **SETTINGS) as llm:
        yield llm


@pytest.mark.parametrize("dies", ["executor", "scheduler", "blocks", "detokenizer"])
def test_no_embedding_is_lost_or_changed(llm: pageant.LLM, right: list[list[float]], dies: str) -> None:
    pid = next(one.pid for one in llm.statistics() if one.node == dies)
    before = llm.scheduler_statistics().counters["ended"]
    found: list[pageant.EmbeddingRequestOutput] = []
    running = threading.Thread(target=lambda: found.extend(llm.embed(texts())))
    running.start()
    while llm.scheduler_statistics().counters["ended"] < before + 8:
        assert running.is_alive()
    os.kill(pid, signal.SIGKILL)
    running.join(timeout=60)
    assert not running.is_alive() and len(found) == NUM_TEXTS
    np.testing.assert_allclose([one.outputs.embedding for one in found], right, atol=1e-6)
    assert pid not in [one.pid for one in llm.statistics()]
