"""Engines are driven over a pipe; what they say, how they end and what they hold is seen."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pageant.protocol.errors import BadRequest
from pageant.scripts.bench import engine_process
from pageant.scripts.bench.engine_process import EngineFailed, EngineProcess, family, pss_bytes
from pageant.scripts.bench.peers import environments

GOOD = """
    DISTRIBUTION = None
    def load(job):
        print("a library's chatter")
        return lambda prompts, tokens: len(prompts) * tokens
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A peer whose file is the given text, in our own environment."""

    def make(text):
        path = tmp_path / "fake.py"
        path.write_text(textwrap.dedent(text))
        serving = environments.FOLDER / "serving.py"
        monkeypatch.setattr(
            engine_process,
            "command",
            lambda name, home, *rest: [sys.executable, str(serving), str(path), *rest],
        )
        monkeypatch.setattr(engine_process, "variables", lambda name, home: dict(os.environ))
        monkeypatch.setattr(engine_process, "checkpoint", lambda name, model, quantization, home: model)
        return EngineProcess("fake", tmp_path, ["single", "batch"], home=tmp_path, sample_memory=True)

    return make


def test_a_run_is_timed_and_the_memory_of_the_process_is_seen(fake):
    engine = fake(GOOD)
    assert engine.run("single") >= 0 and engine.run("batch") >= 0 and engine.ready_seconds > 0
    engine._memory._stopped.wait(3 * engine_process.SAMPLING_SECONDS)
    peak = engine.close()
    assert peak is not None and 1 << 20 < peak < 1 << 30


def test_too_few_tokens_are_no_run(fake):
    with (
        fake(GOOD.replace("* tokens", "* (tokens - 1)")) as engine,
        pytest.raises(EngineFailed, match="generated 63 tokens; expected 64"),
    ):
        engine.run("single")


def test_an_engine_that_cannot_load_says_why(fake):
    with pytest.raises(EngineFailed, match="no such instruction"):
        fake("DISTRIBUTION = None\ndef load(job):\n    raise RuntimeError('no such instruction')\n")


def test_an_engine_that_dies_in_a_run_says_why(fake):
    dies = GOOD.replace(
        "return lambda prompts, tokens:", "return lambda prompts, tokens: tokens > 1 and 1 / 0 or"
    )
    with fake(dies) as engine, pytest.raises(EngineFailed, match="ZeroDivisionError"):
        engine.run("single")


def test_a_process_counts_with_its_children():
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "1\n"
        found = family(parent.pid)
        assert found[0] == parent.pid and len(found) == 2
        assert all(pss_bytes(pid) > 0 for pid in found)
        parent.stdin.close()
    assert pss_bytes(parent.pid) == 0


def test_a_peer_that_is_not_known_or_not_set_up_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="no peer 'nothing'"):
        environments.python("nothing", tmp_path)
    with pytest.raises(BadRequest, match="peers setup vllm"):
        environments.python("vllm", tmp_path)
    assert environments.python("transformers", tmp_path) == Path(sys.executable)


def test_every_peer_can_be_read_without_its_library():
    for peer in ("pageant", *environments.PEERS):
        module = environments.peer_module(peer)
        assert callable(module.load)
        if not environments.supports(peer, None):
            assert peer == "llama_cpp"
        assert hasattr(module, "convert") == hasattr(module, "CONVERTED")
