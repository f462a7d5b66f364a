import json
import sys
from pathlib import Path

import pytest

import pageant
from pageant.scripts.bench import beside
from pageant.scripts.bench.engine_process import EngineFailed
from pageant.scripts.bench.serving import servers
from pageant.scripts.bench.serving.servers import ComparedServer

DEMO = Path(pageant.__file__).parent / "models" / "demo"


def test_our_server_is_started_driven_and_ended(monkeypatch, tmp_path):
    """Compare our server with itself: the peer's column is another of our own processes."""
    monkeypatch.setattr(beside, "END_ID", 400)
    monkeypatch.setitem(servers.SERVERS, "vllm", servers.SERVERS["pageant"])
    pids = []
    enter = ComparedServer.__enter__
    monkeypatch.setattr(ComparedServer, "__enter__", lambda self: (enter(self), pids.append(self.pid))[0])
    beside.bench(DEMO, tmp_path / "found.json", tmp_path, "vllm", concurrency=4, seconds=0.3, rounds=1)
    found = json.loads((tmp_path / "found.json").read_text())
    for name in ("pageant", "vllm"):
        assert found["servers"][name]["tokens/s"] > 0 and found["servers"][name]["failed"] == 0
        assert found["servers"][name]["CPU s per 1,000 tokens"] > 0
    assert found["ours_over"]["vllm"]["tokens/s"] > 0
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_replicas_share_prefixes(monkeypatch, tmp_path):
    """Two of our servers of two replicas each; hits are counted over all replicas."""
    monkeypatch.setattr(beside, "END_ID", 400)
    monkeypatch.setitem(servers.SERVERS, "vllm", servers.SERVERS["pageant"])
    path = tmp_path / "found.json"
    settings = {"replicas": 2, "prefix_tokens": 64, "prefixes": 2}
    beside.bench(DEMO, path, tmp_path, "vllm", concurrency=4, seconds=1.0, rounds=1, **settings)
    found = json.loads(path.read_text())
    for name in ("pageant", "vllm"):
        assert 0.3 < found["servers"][name]["hits"] < 1 and found["servers"][name]["failed"] == 0


def test_a_server_that_does_not_start_says_why(monkeypatch, tmp_path):
    command = [sys.executable, "-c", "import sys; sys.exit('no such device')"]
    monkeypatch.setitem(servers.SERVERS, "vllm", lambda *_: (command, {}))
    with (
        pytest.raises(EngineFailed, match="vllm did not start: no such device"),
        ComparedServer("vllm", DEMO, tmp_path),
    ):
        pass
