"""Servers started as their users start them, each in its own environment: ours, and the peers' that have one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pageant.scripts.bench.engine_process import EngineFailed
from pageant.scripts.bench.peers.environments import python, variables
from pageant.scripts.server_process import ServerProcess, free_port


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


class ComparedServer(ServerProcess):
    """Our server or a peer's, with a model and so many replicas.

    One replica has no prefix cache, since no prompts of its load are alike; several have one.

    Args:
        more: further words of its command.

    Raises:
        EngineFailed: it ended while it started, or was not ready in time.
    """

    start_seconds_max = 300.0
    error = EngineFailed

    def __init__(
        self, name: str, model: Path, home: Path, replicas: int = 1, more: Sequence[str] = ()
    ) -> None:
        port = free_port()
        command, environment = SERVERS[name](model, port, home, replicas)
        super().__init__(name, [*command, *more], port, environment)
