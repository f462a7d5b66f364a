"""An engine in processes of its own, driven over a pipe: its times, and the memory of all its processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from pageant.scripts.bench.peers.environments import checkpoint, command, variables
from pageant.scripts.bench.workloads import workload

KV_GIB = 2  # of KV cache, for every engine that asks
CLOSING_SECONDS = 30.0
SAMPLING_SECONDS = 0.1


class EngineFailed(RuntimeError):
    """The engine's process ended; the text is the end of what it said."""


class EngineProcess:
    """Pageant or a peer, loaded, with the prompts of some workloads.

    A peer is stopped whole between its runs, since some poll while they are idle (vLLM here takes a third of a
    core), which would slow whoever runs meanwhile. Pageant rests by itself.

    `ready_seconds` is from the start of its process until it has generated one token.
    """

    def __init__(
        self,
        name: str,
        model: Path,
        workloads: list[str],
        *,
        quantization: str | None = None,
        kv_gib: int = KV_GIB,
        settings: dict[str, Any] | None = None,
        home: Path,
        sample_memory: bool = False,
    ) -> None:
        job = {
            "model": str(checkpoint(name, model, quantization, home)),
            "quantization": quantization,
            "kv_gib": kv_gib,
            "settings": settings or {},
            "workloads": {
                each: {"prompts": workload(each).prompts(), "output_tokens": workload(each).output_tokens}
                for each in workloads
            },
        }
        self.name = name
        self._files = tempfile.TemporaryDirectory(prefix="pageant-bench-")
        path = Path(self._files.name) / "job.json"
        path.write_text(json.dumps(job))
        self._log = open(Path(self._files.name) / "log", "w+")  # noqa: SIM115 (closed by `close`)
        began = time.perf_counter()
        self._process = subprocess.Popen(
            command(name, home, "serve", str(path)),
            env=variables(name, home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._memory = PeakMemory(self._process.pid) if sample_memory else None
        try:
            self.version: str | None = self._answer()["version"]
        except EngineFailed:
            self.close()
            raise
        self.ready_seconds = time.perf_counter() - began
        self._pause()

    def run(self, name: str) -> float:
        """Seconds that the workload takes.

        Raises:
            EngineFailed: it ended, or not every request generated to its end.
        """
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            print(name, file=self._process.stdin, flush=True)
        answer = self._answer()
        self._pause()
        expected = workload(name).requests * workload(name).output_tokens
        if answer["tokens"] != expected:
            raise EngineFailed(f"{self.name} generated {answer['tokens']} tokens; expected {expected}")
        return float(answer["seconds"])

    def close(self) -> int | None:
        """Ends it and every process of its session; most bytes that they had at a time, if that was sampled."""
        peak = self._memory.stop() if self._memory is not None else None
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSING_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._log.close()
        self._files.cleanup()
        return peak

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _pause(self) -> None:
        if self.name != "pageant":
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise EngineFailed(f"{self.name} ended: {self._log.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def exit_when_asked() -> None:
    """A benchmark that is asked to end leaves by an exception, and so ends its engines."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


class PeakMemory:
    """Samples the memory of a process and its descendants: proportional set size, so that shared pages count once."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def stop(self) -> int:
        """The most bytes that were seen."""
        self._stopped.set()
        self._thread.join()
        return self._peak

    def _sample(self) -> None:
        while not self._stopped.wait(SAMPLING_SECONDS):
            self._peak = max(self._peak, sum(map(pss_bytes, family(self._pid))))


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                children[int(parent)].append(int(entry.name))
    found = [pid]
    for one in found:  # grows as it is read
        found += children[one]
    return found


def pss_bytes(pid: int) -> int:
    """Return the memory of a process, a shared page counted by its share; 0 where it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
