"""A server of a model with replicas: what clients and Prometheus see, and what operators do, by HTTP and by command."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import httpx
import pytest

NAME = "doubled"
ASKED = {"prompt": [5, 6, 7, 8] * 6, "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(start):
    settings = {"replicas": 2, "listen": "tcp://127.0.0.1:*", "routing": "round_robin"}
    settings["served_model_name"] = NAME
    return start(settings, admin_routes=True, operator_keys=("o",), api_keys=("t",))


@pytest.fixture(scope="module")
def client(server):
    headers = {"Authorization": "Bearer o"}
    with httpx.Client(base_url=server.served_at().split()[-1], timeout=60, headers=headers) as client:
        yield client


def told(client):
    (model, *_) = client.get("/v1/models").json()["data"]
    answer = client.post("/v1/completions", json={"model": model["id"], **ASKED})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def names(answer):
    assert answer.status_code == 200, answer.text
    return [one["name"] for one in answer.json()["replicas"]]


def test_answers_are_those_of_one_engine_and_metrics_tell_replicas_apart(client, http):
    assert {told(client) for _ in range(4)} == {told(http)}
    page = client.get("/metrics").text
    engines = [f'engine="{number}"' for number in range(2)]
    lines = [line for line in page.splitlines() if line.startswith("pageant:scheduler_submitted_total")]
    counts = {
        engine: float(line.rpartition(" ")[2]) for engine in engines for line in lines if engine in line
    }
    assert len(counts) == 2 and min(counts.values()) >= 2
    assert float(re.search(r"^pageant:route_decisions_total(?:{})? (\S+)$", page, re.MULTILINE)[1]) >= 4
    waiting = re.findall(r'^pageant:route_waiting_seconds\{.*engine="(\d)".*\} 0', page, re.MULTILINE)
    assert sorted(waiting) == ["0", "1"]


def test_operators_add_drain_and_remove(client):
    assert names(client.get("/replicas")) == ["replica-0", "replica-1"]
    added = client.post("/replicas/add")
    assert names(added) == ["replica-0", "replica-1", "replica-2"] and added.json()["name"] == "replica-2"
    drained = client.post("/replicas/drain", params={"name": "replica-0", "patience": "0"})
    assert names(drained) == ["replica-1", "replica-2"]
    assert names(client.post("/replicas/remove", params={"name": "replica-1"})) == ["replica-2"]
    assert client.get("/health").status_code == 200
    assert names(client.post("/replicas/add")) == ["replica-0", "replica-2"]


@pytest.mark.parametrize(
    ("path", "params", "status", "text"),
    [
        ("drain", {}, 400, "name is not given"),
        ("drain", {"name": "replica-9"}, 400, "did you mean 'replica-"),
        ("drain", {"name": "replica-0", "patience": "soon"}, 400, "patience is 'soon'; expected seconds"),
        ("remove", {"name": "replica-0", "force": "perhaps"}, 400, "force is 'perhaps'"),
    ],
)
def test_what_is_wrong_is_said(client, path, params, status, text):
    answer = client.post(f"/replicas/{path}", params=params)
    assert (answer.status_code, text in answer.text) == (status, True), answer.text


def test_tenants_are_no_operators(client):
    answer = client.post("/replicas/add", headers={"Authorization": "Bearer t"})
    assert answer.status_code == 403


def run(*arguments):
    command = [sys.executable, "-m", "pageant", "replicas", *arguments, "--topology", NAME]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_lists_drains_and_says_what_is_wrong(client):
    listed = run("ls")
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == [
        ["replica-0", "up"],
        ["replica-2", "up"],
    ]
    wrong = run("drain", "replica-5")
    assert wrong.returncode == 1 and "did you mean 'replica-" in wrong.stderr
    drained = run("drain", "replica-2", "--patience", "0")
    assert drained.returncode == 0 and "replica-2" not in drained.stdout
    assert names(client.get("/replicas")) == ["replica-0"]


def test_ps_names_them(server):
    command = [sys.executable, "-m", "pageant", "ps", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    (mine,) = (one for one in found if one["name"] == NAME)
    names = [one["name"] for one in mine["actors"] if one["name"].startswith("replica-")]
    assert names and {name.partition("/")[0] for name in names} == {"replica-0"}
