"""Servers started as their users start them, each in its own environment: ours, and the peers' that have one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from pageant.scripts.bench.engine_process import EngineFailed
from pageant.scripts.bench.peers.environments import python, variables

START_SECONDS_MAX = 300.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.2


def _ours(model: Path, port: int, home: Path, replicas: int) -> tuple[list[str], dict[str, str]]:
    command = [sys.executable, "-m", "pageant", "serve", str(model), "--port", str(port)]
    command += ["--max-num-seqs", "512", "--set", "kv_cache_memory=2GiB"]
    if replicas == 1:
        return [*command, "--set", "enable_prefix_caching=false"], dict(os.environ)
    return [*command, "--replicas", str(replicas), "--threads", str(_threads(replicas))], dict(os.environ)


def _vllm(model: Path, port: int, home: Path, replicas: int) -> tuple[list[str], dict[str, str]]:
    """Return vLLM's command. One replica keeps a core for its front end, as by default: streams are faster so."""
    command = [str(python("vllm", home)), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-num-seqs", "512"]
    command += ["--max-model-len", "4096", "--disable-uvicorn-access-log"]
    environment = variables("vllm", home) | {"VLLM_CPU_KVCACHE_SPACE": "2"}
    cores = sorted(os.sched_getaffinity(0))
    if replicas == 1:
        command += ["--no-enable-prefix-caching"]
        environment["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores[: max(1, len(cores) - 1)]))
    else:
        command += ["--data-parallel-size", str(replicas), "--enable-prefix-caching"]
        threads = _threads(replicas)
        starts = [number * threads % len(cores) for number in range(replicas)]
        shares = (cores[start : start + threads] for start in starts)
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, share)) for share in shares)
    return command, environment


def _threads(replicas: int) -> int:
    """Return the cores of a replica, if all are shared out."""
    return max(1, len(os.sched_getaffinity(0)) // replicas)


SERVERS = {"pageant": _ours, "vllm": _vllm}


class ServerProcess:
    """A server that is ready within `with`; ended with all its processes after it.

    One replica has no prefix cache, since no prompts of its load are alike; several have one.

    Args:
        more: further words of its command.

    Raises:
        EngineFailed: it ended while it started, or was not ready in time.
    """

    def __init__(
        self, name: str, model: Path, home: Path, replicas: int = 1, more: Sequence[str] = ()
    ) -> None:
        self.name = name
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command, self._environment = SERVERS[name](model, port, home, replicas)
        self._command = [*command, *more]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed at the end)

    def __enter__(self) -> ServerProcess:
        began = time.perf_counter()
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            while not self._is_ready():
                if self._process.poll() is not None or time.perf_counter() - began > START_SECONDS_MAX:
                    self._log.seek(0)
                    raise EngineFailed(f"{self.name} did not start: {self._log.read()[-2000:]}")
                time.sleep(POLL_SECONDS)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """Return the id of the process from which all the others descend."""
        return self._process.pid

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _end(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
