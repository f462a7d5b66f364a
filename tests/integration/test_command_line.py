"""The commands, as a user runs them."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PAGEANT = [sys.executable, "-m", "pageant"]
HERE = Path(__file__).parent
TINY = ["--set", "threads=1", "--set", "num_blocks=64"]


def _pageant(*arguments: object, **keywords) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PAGEANT, *map(str, arguments)], capture_output=True, text=True, timeout=120, **keywords
    )


def test_run_answers_with_the_packaged_model_and_says_how_long_it_took():
    result = _pageant("run", "Explain the with statement", "--timings", "--pool", "--set", "threads=1")
    assert "wasted: " in result.stderr and "evictions: 0 blocks" in result.stderr
    assert result.returncode == 0, result.stderr
    assert "with" in result.stdout.lower() and len(result.stdout.split()) > 10
    assert "first token" in result.stderr


@pytest.mark.parametrize("placement", ["one", "each"])
def test_run_takes_any_checkpoint_placement_and_sampling(checkpoint, placement):
    result = _pageant(
        "run", "hello", "--model", checkpoint.path, "--placement", placement, "--raw", "--max-tokens", 8,
        "--temperature", 0.7, "--top-p", 0.9, *TINY,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["run", "x", "--model", "/nowhere/at/all"], "/nowhere/at/all: no such folder"),
        (["run", "x", "--set", "max_num_seq=3"], "did you mean 'max_num_seqs'"),
        (["run", "x", "--placement", "two"], "placement: Invalid enum value 'two'"),
        (["run", "", "--raw"], "the prompt is empty"),
        (["run", "x", "--temperature", "-1"], "temperature is -1"),
        (["bench", "throughput", "--workload", "huge"], "no workload 'huge'; expected batch, single"),
        (["bench", "throughput", "--json", "/nowhere/figures"], "/nowhere/figures cannot be written"),
    ],
)
def test_what_is_the_users_to_mend_is_told_without_a_traceback(arguments, message):
    result = _pageant(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_that_is_taken_is_told_without_a_traceback():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = _pageant("serve", "--port", address.partition(":")[2], "--set", "threads=1")
    assert result.returncode == 2 and f"cannot listen on {address}: Address already in use" in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_ends_a_run_cleanly(checkpoint):
    command = [
        *PAGEANT,
        "run",
        "hello",
        "--raw",
        "--model",
        str(checkpoint.path),
        "--max-tokens",
        "100000",
        *TINY,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None and process.stdout.read(1)  # it is answering
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, 130), "0 if the answer was complete by then"
    assert "Traceback" not in errors


def test_an_answer_in_a_real_terminal_is_the_answer_and_nothing_else(checkpoint):
    """The progress bar is gone when the first token comes."""
    plain = _pageant("run", "hello", "--raw", "--model", checkpoint.path, "--max-tokens", 40, *TINY).stdout
    command = [
        *PAGEANT,
        "run",
        "hello",
        "--raw",
        "--model",
        str(checkpoint.path),
        "--max-tokens",
        "40",
        *TINY,
    ]
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm"}
    process = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment, start_new_session=True)
    os.close(slave)
    seen = b""
    try:
        while piece := os.read(master, 4096):
            seen += piece
    except OSError:  # the terminal is closed at its end
        pass
    os.close(master)
    assert process.wait(timeout=60) == 0
    answer = plain.replace("\n", "\r\n").encode()
    assert seen.endswith(answer)


def test_chat_answers_line_by_line_until_the_end_of_the_input():
    result = _pageant(
        "chat", "--max-tokens", 12, "--set", "threads=1", input="What is a list?\n\nAnd a tuple?\n"
    )
    assert result.returncode == 0, result.stderr
    assert len([line for line in result.stdout.splitlines() if line.strip()]) >= 2


def test_ctrl_c_during_an_answer_keeps_the_chat_session(checkpoint):
    """Use a real terminal: an answer is interrupted, a second one is asked for, Ctrl-D ends the session.

    Greedy answers, since one that is drawn may end by itself before the signal.
    """
    master, slave = pty.openpty()
    command = [
        *PAGEANT,
        "chat",
        "--model",
        str(checkpoint.path),
        "--max-tokens",
        "250",
        "--temperature",
        "0",
        "--placement",
        "one",
        *TINY,
    ]
    command += ["--set", "actors.detokenizer.class=interrupting:Interrupting"]
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=os.environ | {"TERM": "dumb"},
        cwd=HERE,
        start_new_session=True,
        # Whoever runs the tests in the background of a shell has it ignored, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(slave)
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(master, 4096)
        seen = seen.partition(text)[2]

    until(b"> ")
    os.write(master, b"hello\n")
    until(b" [interrupted]\r\n> ")
    os.write(master, b"again\n")
    until(b"again\r\n")
    until(b"> ")
    os.write(master, b"\x04")
    assert process.wait(timeout=60) == 0
    os.close(master)


def test_a_server_that_is_starting_ends_at_a_signal(checkpoint):
    never = "actors.detokenizer.class=interrupting:NeverStarting"
    result = _pageant(
        "serve", checkpoint.path, "--port", 0, "--placement", "one", *TINY, "--set", never, cwd=HERE
    )
    assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr


def test_topology_show_prints_what_topology_check_takes(checkpoint, tmp_path):
    shown = _pageant(
        "topology", "show", "--model", checkpoint.path, "--placement", "each", "--max-num-seqs", 7,
        "--served-model-name", "tiny", "--set", "actors.tokenizer.count=2",
    )  # fmt: skip
    data = yaml.safe_load(shown.stdout)
    assert data["max_num_seqs"] == 7 and data["served_model_name"] == "tiny"
    assert data["actors"]["tokenizer"]["count"] == 2
    assert "# scheduler lives on scheduler" in shown.stdout
    path = tmp_path / "topology.yaml"
    path.write_text(shown.stdout)
    checked = _pageant("topology", "check", "--topology", path)
    assert checked.stdout.startswith("sound: 9 actors on 8 nodes"), checked.stderr
    again = _pageant("topology", "show", "--topology", path)
    assert again.stdout == shown.stdout
    changed = _pageant("topology", "show", "--topology", path, "--max-num-seqs", 9, "--placement", "one")
    assert yaml.safe_load(changed.stdout)["max_num_seqs"] == 9
    assert "# scheduler lives on front" in changed.stdout


def test_topology_draw_shows_every_actor_on_its_node(checkpoint):
    drawn = _pageant("topology", "draw", "--model", checkpoint.path, "--placement", "each").stdout
    for actor in ("executor/0", "tokenizer", "detokenizer", "scheduler", "blocks", "frontend"):
        assert actor in drawn
    assert "══▶" in drawn


def test_protocol_prints_the_schema():
    schema = json.loads(_pageant("protocol").stdout)
    assert {"StepPlan", "Assign", "Submit", "OutputBatch"} <= schema["messages"].keys()


def test_doctor_says_what_was_found():
    findings = {finding["what"]: finding for finding in json.loads(_pageant("doctor", "--json").stdout)}
    assert {"torch", "cpu", "memory", "gpu", "kernels", "compilers", "zeromq"} <= findings.keys()
    assert "reference" in findings["kernels"]["found"]


def test_a_node_that_finds_nobody_says_so():
    result = _pageant("node", "--join", "ipc:///nowhere.sock", "--name", "x")
    assert result.returncode == 1
    assert "did not answer" in result.stderr
