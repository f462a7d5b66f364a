"""A process dies that holds clients' connections: theirs are lost, and nobody else's."""

from __future__ import annotations

import json
import os
import signal

import httpx

from pageant.protocol.supervision import GetDirectory

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
    session = start(APART | {"max_model_len": 1024})
    gone, stays = session.served_at().split(" on ")[1].split(", ")
    with httpx.Client(base_url=stays, timeout=60) as other, httpx.Client(base_url=gone, timeout=60) as http:
        right = other.post(COMPLETIONS, json=ENDLESS).text.splitlines()
        with (
            http.stream("POST", COMPLETIONS, json=ENDLESS) as lost,
            other.stream("POST", COMPLETIONS, json=ENDLESS) as kept,
        ):
            ours, theirs = lost.iter_lines(), kept.iter_lines()
            begun = [next(ours), next(theirs)][1:]
            assert session.scheduler_statistics().num_running == 2
            os.kill(pid_of(session, "web-0"), signal.SIGKILL)
            while session.scheduler_statistics().num_running > 1:
                pass
            assert text_of([*begun, *theirs]) == text_of(right)
    counters = session.scheduler_statistics().counters
    assert sum(count for name, count in counters.items() if name.startswith("aborts")) == 1
    assert session.pool_statistics().blocks_held == 0
    while (back := session.served_at().split(" on ")[1].split(", ")[0]) == gone:
        pass
    with httpx.Client(base_url=back, timeout=60) as http:
        assert http.post(COMPLETIONS, json=ENDLESS).text.splitlines()[-2] == "data: [DONE]"
