"""Bars of `pageant chaos --groups`, and what a topology that has ended must not leave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from pageant.scripts.chaos import leftovers
from pageant.scripts.chaos.groups import PAUSE_SECONDS_MAX, Fall, bars_missed, summary
from pageant.scripts.chaos.leftovers import Held, most_threads
from tests.kernels.collectives.groups import shared_memory

FALL = Fall(rank=1, fault="kill", noticed=0.1, ready=2.0, paused=2.5, lives=1, deaths=1)


@pytest.mark.parametrize(
    ("changed", "bar"),
    [
        ({}, None),
        ({"noticed": 3.5}, "noticed after 3.50 s, not 2"),
        (
            {"paused": 2.1 + PAUSE_SECONDS_MAX},
            "streams paused for 4.10 s, 2.10 s longer than the group was away",
        ),
        ({"lives": 2}, "2 lives of the group began, not 1"),
        ({"deaths": 0}, "0 deaths were counted, not 1"),
    ],
)
def test_a_fall_misses_the_bars_that_it_does_not_hold(changed, bar):
    expected = [] if bar is None else [f"rank 1, kill: {bar}"]
    assert replace(FALL, **changed).misses(noticed_max=2.0) == expected


def test_a_run_misses_what_its_falls_miss_and_what_is_lost_changed_or_left():
    good = {"lost": [], "changed": [], "missed": [], "left": []}
    assert bars_missed(good) == []
    bad = {
        "lost": ["request 1"],
        "changed": ["a", "b"],
        "missed": ["rank 1, kill: late"],
        "left": ["port 80"],
    }
    assert bars_missed(bad) == [
        *("1 requests were lost", "2 requests were changed", "rank 1, kill: late", "left: port 80"),
    ]


def test_falls_are_summed_up_by_rank_and_fault():
    falls = [FALL, replace(FALL, paused=4.5), replace(FALL, paused=3.0), replace(FALL, rank=0, fault="stop")]
    found = summary(falls)
    assert list(found) == ["rank 0, stop", "rank 1, kill"]
    assert found["rank 1, kill"] == {
        **{"times": 3, "noticed_median": 0.1, "ready_median": 2.0, "paused_median": 3.0},
        **{"paused_max": 4.5, "over_the_bar": 1},
    }


def test_a_thread_a_process_a_port_and_a_segment_that_are_left_are_each_named(monkeypatch):
    monkeypatch.setattr(leftovers, "SECONDS_MAX", 0.0)
    before = Held.now()
    assert asyncio.run(before.outlived_by()) == []
    let_go = threading.Event()
    thread = threading.Thread(target=let_go.wait, name="forgotten")
    with contextlib.ExitStack() as stack:
        stack.callback(thread.join)
        stack.callback(let_go.set)
        thread.start()
        assert most_threads([os.getpid()]) >= 2
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
        (rank,) = stack.enter_context(shared_memory(1))
        rank.barrier()
        port = listening.getsockname()[1]
        left = asyncio.run(before.outlived_by())
    assert [one.partition(" ")[0] for one in left] == ["thread", "process", "port", "segment"]
    assert "forgotten" in left[0]
    assert left[1:3] == [f"process {process.pid}", f"port {port}"]
