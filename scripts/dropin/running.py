"""Runs vLLM's examples against Pageant, each in a process of its own with a limit of time."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pageant.scripts.dropin.cases import Example
from pageant.scripts.dropin.hub import Hub
from pageant.scripts.dropin.sources import client_packages
from pageant.scripts.server_process import free_port

EXAMPLE_SECONDS = 300.0
START_SECONDS = 240.0
STOP_SECONDS = 20.0
PORT = re.compile(r"(localhost|127\.0\.0\.1|0\.0\.0\.0):8000")
_NOISE = re.compile(
    r"^\s*$|UserWarning|FutureWarning|^\s*\^+\s*$|resource_tracker|^Traceback|During handling"
)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one run.

    Attributes:
        name: of the example or the launch.
        ran: whether it did what it was to do.
        why: where it did not, the last line that it said.
        refused: whether that is a reason of the table's.
        seconds: how long it took.
    """

    name: str
    ran: bool
    why: str = ""
    refused: bool = False
    seconds: float = 0.0


def ported(source: str, port: int) -> str:
    """Return a script with the one word and the port changed: `vllm` is `pageant` where it is imported."""
    source = re.sub(r"^(\s*)from vllm\b", r"\1from pageant", source, flags=re.MULTILINE)
    source = re.sub(r"^(\s*)import vllm\b", r"\1import pageant as vllm", source, flags=re.MULTILINE)
    return PORT.sub(rf"\1:{port}", source)


def reason(log: str) -> str:
    """Return the last line of a log that says something, in at most 300 characters."""
    lines = [line.strip() for line in log.splitlines() if not _NOISE.search(line)]
    errors = [
        line
        for line in lines
        if re.match(r"([\w.]+(Error|Unsupported|Exception)\b|error:|pageant.*error)", line)
    ]
    return (errors or lines or ["it said nothing"])[-1][:300]


def is_of_table(why: str) -> bool:
    """Return whether a reason is one that `docs/from-vllm.md` gives: of the table's, or an architecture's name."""
    from pageant.scripts.dropin.page import reasons

    return "architectures is '" in why or any(meaning in why for meaning in reasons())


def end(process: subprocess.Popen[str]) -> None:
    """End a process that leads a group, and whatever it started."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_example(example: Example, sources: Path, hub: Hub) -> Outcome:
    """Run an example, with the server that it asks for."""
    return run_script(example.path, (sources / "examples" / example.path).read_text(), sources, hub, example)


def run_script(name: str, source: str, sources: Path, hub: Hub, how: Example | None = None) -> Outcome:
    """Run a script of vLLM's against Pageant.

    Args:
        how: its arguments, and the server that it asks for; none of both where None.
    """
    arguments, server = (how.arguments, how.server) if how is not None else ((), ())
    hub.add_all(source + "".join(f' "{one}" ' for one in server))
    began = time.monotonic()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(sources / "examples", Path(folder) / "examples", ignore=_only_text)
        script = Path(folder) / "example.py"
        script.write_text(ported(source, port))
        command = [sys.executable, str(script), *arguments]
        try:
            if not server:
                why = _run(command, folder, hub.variables())
            else:
                packages = {"PYTHONPATH": str(client_packages())}
                with serving(["pageant", "serve", *server], port, folder, hub.variables()):
                    why = _run(command, folder, {**hub.variables(), **packages})
        except NotServed as error:
            why = str(error)
    seconds = round(time.monotonic() - began, 1)
    return Outcome(name, not why, why, bool(why) and is_of_table(why), seconds)


def _only_text(folder: str, names: list[str]) -> list[str]:
    return [
        name for name in names if not (name.endswith(".jinja") or os.path.isdir(os.path.join(folder, name)))
    ]


def _run(command: Sequence[str], folder: str, variables: Mapping[str, str]) -> str:
    """Run a command to its end. Return why it failed; nothing where it did not."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            code = process.wait(EXAMPLE_SECONDS)
        except subprocess.TimeoutExpired:
            return f"it had not ended after {EXAMPLE_SECONDS:.0f} s"
        finally:
            end(process)
        log.seek(0)
        said = log.read()
    if os.environ.get("DROPIN_SHOW"):
        print(said)
    return "" if code == 0 else reason(said)


class NotServed(Exception):
    """A server that did not start; says its last words."""


@contextmanager
def serving(
    command: Sequence[str],
    port: int,
    folder: str,
    variables: Mapping[str, str],
    seconds: float = START_SECONDS,
) -> Iterator[None]:
    """Serve within `with`, on a port of the loopback.

    Raises:
        NotServed: it ended while it started, or was not ready in time.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "--port", str(port)],
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            _wait(process, port, seconds)
            yield
        except TimeoutError as error:
            log.seek(0)
            raise NotServed(f"{error}: {reason(log.read())}" if str(error) else reason(log.read())) from None
        finally:
            end(process)


def _wait(process: subprocess.Popen[str], port: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise TimeoutError
        if _is_ready(port):
            return
        time.sleep(0.2)
    raise TimeoutError(f"it was not ready after {seconds:.0f} s")


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            return True
    except OSError:
        return False
