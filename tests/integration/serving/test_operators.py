"""Routes for operators: who is let in, and what they do."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import threading

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from .conftest import DEMO

ROUTES = [
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/is_paused"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/sleep"),
    ("GET", "/is_sleeping"),
    ("POST", "/wake_up"),
    ("POST", "/update_weights"),
    ("GET", "/weight_info"),
    ("GET", "/replicas"),
    ("POST", "/replicas/add"),
    ("POST", "/replicas/drain"),
    ("POST", "/replicas/remove"),
    ("GET", "/actors/killable"),
    ("POST", "/actors/kill"),
    ("GET", "/schedulers"),
    ("POST", "/schedulers/policy"),
]
NAME = "operated"
CHAT = {"model": NAME, "messages": [{"role": "user", "content": "Explain lambda"}], "temperature": 0}
ASKED = {"model": NAME, "prompt": [5, 6, 7, 8] * 6, "max_tokens": 4, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def apart(start):
    """Two servers of an engine, in processes of their own."""
    layout = {"nodes": {"front": {}, "web-0": {"process": True}, "web-1": {"process": True}}}
    settings = {"served_model_name": NAME, "actors": {"http": {"nodes": ["web-0", "web-1"]}}}
    return start(layout | settings, admin_routes=True)


@pytest.fixture(scope="module")
def servers(apart):
    urls = apart.served_at().split(" on ")[1].split(", ")
    clients = [httpx.Client(base_url=url, timeout=60) for url in urls]
    yield clients
    for client in clients:
        client.close()


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_they_are_off_unless_somebody_turns_them_on(http, method, path):
    answer = http.request(method, path)
    assert answer.status_code == 403
    assert "--admin-routes" in answer.json()["error"]["message"]


def test_they_are_for_operators_where_there_are_several_keys(start):
    url = start(admin_routes=True, api_keys=("a", "b"), operator_keys=("o",)).served_at().split()[-1]
    for method, path in ROUTES:
        found = [
            httpx.request(method, url + path, headers={"x-api-key": key}).status_code
            for key in ("a", "b", "o", "nobody's")
        ]
        # There is no body, and the model has no replicas.
        done = (
            400
            if path.startswith(("/update_weights", "/replicas", "/actors/kill", "/schedulers/policy"))
            and "killable" not in path
            else 200
        )
        assert found == [403, 403, done, 401], path
    refused = httpx.get(f"{url}/is_paused", headers={"x-api-key": "a"}).json()["error"]["message"]
    assert "--operator-key" in refused


def test_a_page_of_another_origin_cannot_pause(servers):
    answer = servers[0].post("/pause", headers={"origin": "https://elsewhere.example"})
    assert answer.status_code == 415
    assert servers[0].get("/is_paused").json() == {"is_paused": False, "models": {NAME: False}}


def test_a_paused_server_is_healthy_takes_requests_and_answers_them_when_it_goes_on(servers):
    one, other = servers
    right = one.post("/v1/completions", json=ASKED).json()["choices"][0]["text"]
    assert one.post("/pause", params={"mode": "keep"}).json() == {"status": "paused"}
    for server in servers:
        assert server.get("/is_paused").json()["is_paused"]
        assert server.get("/health").status_code == server.get("/ready").status_code == 200
    texts = []

    def ask() -> None:
        texts.append(other.post("/v1/completions", json=ASKED).json()["choices"][0]["text"])

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(0.2)
    assert asking.is_alive() and not texts
    assert other.post("/resume").json() == {"status": "resumed"}
    asking.join(30)
    assert texts == [right]
    assert not one.get("/is_paused").json()["is_paused"]


def test_a_server_that_sleeps_is_healthy_and_answers_when_it_wakes(servers):
    one, other = servers
    right = one.post("/v1/completions", json=ASKED).json()["choices"][0]["text"]
    assert one.post("/sleep", params={"level": 2, "mode": "wait"}).json() == {"status": "asleep"}
    for server in servers:
        assert server.get("/is_sleeping").json() == {"is_sleeping": True, "models": {NAME: 2}}
        assert server.get("/health").status_code == server.get("/ready").status_code == 200
        assert server.post("/tokenize", json={"prompt": "ab"}).json()["count"] > 0
    texts = []

    def ask() -> None:
        texts.append(other.post("/v1/completions", json=ASKED).json()["choices"][0]["text"])

    asking = threading.Thread(target=ask)
    asking.start()
    assert other.post("/wake_up", params={"tags": "weights"}).json() == {"status": "asleep"}
    assert other.get("/is_sleeping").json()["is_sleeping"] and not texts
    assert one.post("/wake_up?tags=kv_cache").json() == {"status": "awake"}
    asking.join(30)
    assert texts == [right]
    assert one.post("/wake_up").json() == {"status": "awake"}


def test_requests_are_turned_away_where_they_are_not_to_wait(start):
    settings = {"while_asleep": "refuse", "start_asleep": True}
    url = start(settings, admin_routes=True).served_at().split()[-1]
    refused = httpx.post(f"{url}/v1/completions", json=ASKED | {"model": "demo"})
    assert refused.status_code == 503 and refused.headers["retry-after"]
    assert refused.json()["error"]["code"] == "asleep"
    assert httpx.post(f"{url}/wake_up", timeout=60).json() == {"status": "awake"}
    assert httpx.post(f"{url}/v1/completions", json=ASKED | {"model": "demo"}).status_code == 200


def test_answers_say_by_which_weights_they_are(servers, tmp_path):
    one, other = servers
    folder = shutil.copytree(
        DEMO, tmp_path / "step-2", ignore=shutil.ignore_patterns("draft", "eagle", "medusa")
    )
    tensors = load_file(folder / "model.safetensors")
    noisy = {
        name: tensor + 0.02 * torch.randn(tensor.shape).to(tensor.dtype) for name, tensor in tensors.items()
    }
    save_file(noisy, folder / "model.safetensors")
    # Many samples: one is over in less time than it may take to ask for the pause.
    asked = {**CHAT, "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 16, "temperature": 1}
    fingerprints = []
    with one.stream("POST", "/v1/chat/completions", json=asked) as answer:
        assert answer.headers["x-pageant-weight-version"] == "default"
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                fingerprints.append(json.loads(line[6:])["system_fingerprint"])
                if len(fingerprints) == 5:
                    body = {"model_path": str(folder)}
                    # Paused, the answers cannot be over before the weights have come.
                    assert other.post("/pause", params={"mode": "keep"}).json() == {"status": "paused"}
                    updated = other.post("/update_weights", json=body)
                    other.post("/resume").raise_for_status()
                    assert updated.json() == {"weight_version": "step-2", "models": {NAME: "step-2"}}
    versions = [one.rpartition("-default")[1] or "step-2" for one in fingerprints]
    assert [version for version, _ in itertools.groupby(versions)] == ["-default", "step-2"]
    assert fingerprints[-1].startswith("pageant-") and fingerprints[-1].endswith("-step-2")
    for server in servers:
        assert server.get("/weight_info").json()["weight_version"] == "step-2"
        answer = server.post("/v1/completions", json=ASKED)
        assert answer.headers["x-pageant-weight-version"] == "step-2"
        assert answer.json()["system_fingerprint"] == fingerprints[-1]
        assert [model["weight_version"] for model in server.get("/v1/models").json()["data"]] == ["step-2"]
        whole = {"model": NAME, "input": "Hi", "max_output_tokens": 3}
        message = {**CHAT, "max_tokens": 3}
        for path, body in (("/v1/responses", whole), ("/v1/messages", message)):
            assert server.post(path, json=body).json()["system_fingerprint"] == fingerprints[-1]
            lines = server.post(path, json=body | {"stream": True}).text.splitlines()
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            last = next(one for one in events if one["type"] in ("response.incomplete", "message_delta"))
            assert last.get("response", last)["system_fingerprint"] == fingerprints[-1]
    refused = one.post("/update_weights", json={"model_path": str(tmp_path)})
    assert refused.status_code == 400 and "config.json" in refused.json()["error"]["message"]
    back = {"model_path": str(DEMO), "weight_version": "default", "mode": "wait"}
    assert one.post("/update_weights", json=back).json()["weight_version"] == "default"


def test_prefixes_are_forgotten(servers):
    asked = ASKED | {"prompt": [9, 8, 7, 6] * 12}

    def cached() -> int:
        usage = servers[0].post("/v1/completions", json=asked).json()["usage"]
        return (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)

    assert (cached(), cached() > 0) == (0, True)
    answer = servers[1].post("/reset_prefix_cache").json()
    assert answer["status"] == "reset" and answer["blocks"] > 0
    assert cached() == 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/pause?mode=later", "mode is 'later'; expected one of: abort"),
        ("/pause?clear_cache=maybe", "clear_cache is 'maybe'; expected true or false"),
        ("/sleep?level=3", "level is '3'; expected one of: 0, 1, 2"),
        ("/wake_up?tags=kv", "tags has 'kv'; expected one of: kv_cache"),
        ("/pause?model=nobody", "no model 'nobody' is served"),
    ],
)
def test_what_is_wrong_is_named(servers, path, words):
    answer = servers[0].post(path)
    assert answer.status_code in (400, 404) and words in answer.json()["error"]["message"]
    assert not servers[0].get("/is_paused").json()["is_paused"]


def test_the_document_of_the_api_has_their_parameters(http):
    paths = http.get("/openapi.json").json()["paths"]
    names = [parameter["name"] for parameter in paths["/pause"]["post"]["parameters"]]
    assert names == ["model", "mode", "clear_cache", "wait_for_inflight_requests"]


def test_a_command_does_the_same(apart, servers):
    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pageant", "model", *arguments, "--topology", NAME]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    assert run("pause", "--mode", "wait") == (0, "awake, paused (keep); weights: default\n")
    assert servers[0].get("/is_paused").json()["is_paused"]
    assert run("sleep", "--level", "2") == (0, "asleep (level 2), paused (keep); weights: default\n")
    assert run("wake-up") == (0, "awake, paused (keep); weights: default\n")
    assert run("resume") == (0, "awake; weights: default\n") == run("state")
    status, text = run("state", "--model", "nobody")
    assert status == 1 and "no model is called 'nobody'; expected one of ''" in text
