"""The driver of agents: nothing gets out, and what is tried is known."""

from __future__ import annotations

import httpx
import pytest

from pageant.scripts.bench.agents import AGENTS, _variables, refusing_proxy


def test_whatever_is_tried_elsewhere_is_refused_and_told():
    with refusing_proxy() as proxy:
        with httpx.Client(proxy=proxy.url) as client, pytest.raises(httpx.ProxyError, match="403"):
            client.get("https://example.invalid/")
        assert proxy.tried == ["CONNECT example.invalid:443 HTTP/1.1"]


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_is_told_of_the_server_in_a_home_of_its_own(name, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "the user's own")
    variables = _variables(tmp_path, "http://127.0.0.1:9") | AGENTS[name].configure(
        tmp_path, "http://127.0.0.1:1234"
    )
    assert variables["HOME"] == str(tmp_path) and variables["https_proxy"] == "http://127.0.0.1:9"
    assert "ANTHROPIC_API_KEY" not in variables
    written = "".join(file.read_text() for file in tmp_path.rglob("*.toml"))
    assert "http://127.0.0.1:1234" in written + " ".join(variables.values())
