"""A process dies that holds clients' connections: theirs are lost, and nobody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import httpx

from pageant.protocol.supervision import GetDirectory

PAGEANT = [sys.executable, "-m", "pageant"]
VICTIMS = {"scheduler", "executor", "detokenizer", "blocks", "tokenizer", "grammar"}
COMPLETIONS = "/v1/completions"
ENDLESS = {"prompt": "Once", "max_tokens": 900, "temperature": 0, "ignore_eos": True, "stream": True}
APART = {
    "nodes": {"front": {}, "web-0": {"process": True}, "web-1": {"process": True}},
    "actors": {"http": {"nodes": ["web-0", "web-1"]}},
}


def pid_of(session, name: str) -> int:
    return next(node.pid for node in session.ask("supervisor", GetDirectory()).nodes if node.name == name)


def text_of(lines) -> str:
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


def test_requests_of_a_frontend_that_is_gone_are_aborted_and_their_blocks_freed(start):
    apart = APART["nodes"] | {"device": {"process": True}}
    actors = APART["actors"] | {"executor": {"nodes": ["device"]}}
    session = start({"nodes": apart, "actors": actors, "max_model_len": 1024})
    gone, stays = session.served_at().split(" on ")[1].split(", ")
    with httpx.Client(base_url=stays, timeout=60) as other, httpx.Client(base_url=gone, timeout=60) as http:
        right = other.post(COMPLETIONS, json=ENDLESS).text.splitlines()
        with (
            http.stream("POST", COMPLETIONS, json=ENDLESS) as lost,
            other.stream("POST", COMPLETIONS, json=ENDLESS) as kept,
        ):
            ours, theirs = lost.iter_lines(), kept.iter_lines()
            begun = [next(ours), next(theirs)][1:]
            device = pid_of(session, "device")
            os.kill(device, signal.SIGSTOP)  # so that neither ends meanwhile
            assert session.scheduler_statistics().num_running == 2
            os.kill(pid_of(session, "web-0"), signal.SIGKILL)
            while session.scheduler_statistics().num_running > 1:
                pass
            os.kill(device, signal.SIGCONT)
            assert text_of([*begun, *theirs]) == text_of(right)
    counters = session.scheduler_statistics().counters
    assert sum(count for name, count in counters.items() if name.startswith("aborts")) == 1
    assert session.pool_statistics().blocks_held == 0
    while (back := session.served_at().split(" on ")[1].split(", ")[0]) == gone:
        pass
    with httpx.Client(base_url=back, timeout=60) as http:
        assert http.post(COMPLETIONS, json=ENDLESS).text.splitlines()[-2] == "data: [DONE]"


def listed(pid: int) -> dict:
    """Return what `pageant ps` says of the topology that a process started."""
    shown = subprocess.run([*PAGEANT, "ps", "--json"], capture_output=True, check=True).stdout
    return next(one for one in json.loads(shown) if one["pid"] == pid)


def test_pageant_serve_survives_as_it_stands_and_pageant_ps_says_so():
    command = [*PAGEANT, "serve", "--placement", "each", "--port", "0", "--set", "threads=1"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while "serving" not in (line := server.stderr.readline()):
            assert line, "it ended"
        before = listed(server.pid)
        with httpx.Client(base_url=line.split()[-1], timeout=60) as http:
            right = http.post(COMPLETIONS, json=ENDLESS).text.splitlines()
            with http.stream("POST", COMPLETIONS, json=ENDLESS) as stream:
                lines = stream.iter_lines()
                begun = [next(lines) for _ in range(20)]
                for node in before["nodes"]:
                    if node["name"] in VICTIMS:
                        os.kill(node["pid"], signal.SIGKILL)
                assert text_of([*begun, *lines]) == text_of(right)
        after = listed(server.pid)
        pids = [{node["name"]: node["pid"] for node in one["nodes"]} for one in (before, after)]
        restarts = {actor["name"].partition("/")[0]: actor["restarts"] for actor in after["actors"]}
        assert {name for name in pids[0] if pids[0][name] != pids[1][name]} == VICTIMS
        assert {name for name, count in restarts.items() if count} == VICTIMS
        assert {actor["state"] for actor in after["actors"]} == {"up"}
        shown = subprocess.run([*PAGEANT, "ps"], capture_output=True, text=True, check=True).stdout
        assert f"(process {server.pid}, placement each)" in shown and "executor/0" in shown
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert str(server.pid) not in subprocess.run([*PAGEANT, "ps"], capture_output=True, text=True).stdout
