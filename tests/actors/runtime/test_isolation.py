"""Functions that end their process, called in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from pageant.actors.runtime import isolated
from pageant.actors.runtime.isolation import LENGTH_BYTES, IsolatedDeath, IsolatedLimits, Isolation

# The life of a process is what is tested.
pytestmark = pytest.mark.usefixtures("real_processes")

OPENER = "isolation_players:open_player"
MIB = 1 << 20


@pytest.fixture
def isolation(monkeypatch):
    made = []

    def make(**limits):
        monkeypatch.syspath_prepend(os.path.dirname(__file__))
        made.append(Isolation(OPENER, "-", IsolatedLimits(**limits)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_an_answer_comes_back_and_the_process_is_used_again(isolation):
    one = isolation()
    assert one.call(b"echo hello") == b"-hello"
    pid = one.call(b"pid")
    others = {one.call(b"pid") for _ in range(6)}
    assert pid in others and str(os.getpid()).encode() not in others and len(others) <= 2


def test_a_process_that_was_prepared_has_the_first_input(isolation):
    one = isolation()
    one.prepare()
    (prepared,) = [worker._process.pid for worker in one._idle]
    assert int(one.call(b"pid")) == prepared
    one.close()
    one.prepare()
    assert not one._idle, "it is over"


@pytest.mark.parametrize("what", [b"overflow", b"abort", b"exit"])
def test_a_death_is_an_answer_about_one_input_and_the_next_is_answered(isolation, what):
    one = isolation()
    with pytest.raises(IsolatedDeath, match=r"its process (was ended by signal|ended with exit code)"):
        one.call(what)
    assert one.call(b"echo again") == b"-again" and one.deaths == 1


def test_what_takes_too_long_is_ended(isolation):
    one = isolation(seconds=0.3)
    one.call(b"echo ready")
    with pytest.raises(IsolatedDeath, match=r"it takes more than 0\.3 seconds"):
        one.call(b"spin")


def test_time_that_the_processor_is_others_is_not_counted(isolation, monkeypatch):
    """A function that waits stands for one that a busy machine keeps waiting."""
    one = isolation(seconds=0.2)
    assert one.call(b"wait 0.5") == b"waited"
    monkeypatch.setattr("pageant.actors.runtime.isolation.WALL_FACTOR", 2.0)
    with pytest.raises(IsolatedDeath, match=r"it takes more than 0\.2 seconds"):
        one.call(b"wait 60")


def test_what_takes_too_much_memory_is_ended(isolation):
    one = isolation(memory_bytes=64 * MIB)
    with pytest.raises(IsolatedDeath):
        one.call(b"fill")


def test_what_is_printed_does_not_reach_the_answers(isolation):
    assert isolation().call(b"print") == b"printed"


def test_large_inputs_and_answers_pass(isolation):
    assert len(isolation().call(b"echo " + b"x" * (5 * MIB))) == 5 * MIB + 1


def test_an_end_ends_every_process_though_it_is_busy(isolation):
    one, outcome = isolation(seconds=60), []

    def call():
        try:
            one.call(b"spin")
        except IsolatedDeath as error:
            outcome.append(error)

    pid = int(one.call(b"pid"))
    thread = threading.Thread(target=call)
    thread.start()
    while not any(worker._is_ready for worker in list(one._busy)):
        time.sleep(0.01)
    one.close()
    thread.join(30)
    assert outcome and not one._idle
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(IsolatedDeath, match="with its actor"):
        one.call(b"echo late")


def test_a_function_that_cannot_be_opened_says_so_and_charges_no_input():
    one = Isolation("isolation_players:nothing", "-")
    with pytest.raises(OSError, match=r"isolated did not start: its process ended with exit code 1"):
        one.call(b"echo")
    assert one.deaths == 0
    one.close()


def test_a_process_that_ended_while_it_waited_charges_no_input(isolation):
    one = isolation()
    one.call(b"echo ready")
    assert one._idle
    for worker in one._idle:
        os.kill(worker._process.pid, signal.SIGKILL)
        worker._process.wait(30)
    assert one.call(b"echo again") == b"-again" and one.deaths == 0


@pytest.mark.parametrize(
    "said", [b"", len(b"echo a").to_bytes(LENGTH_BYTES, "little") + b"echo a", b"\x09\0\0\0ech"]
)
def test_a_process_whose_caller_has_gone_ends_without_a_word(said):
    """Its caller hears no more, and may have died in the middle of an input."""
    read, write = os.pipe()
    os.close(read)
    command = (sys.executable, "-m", isolated.__name__, OPENER, "-", str(256 * MIB), str(16 * MIB))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    try:
        found = subprocess.run(command, input=said, stdout=write, stderr=subprocess.PIPE, env=environment)
    finally:
        os.close(write)
    assert (found.returncode, found.stderr) == (0, b"")
