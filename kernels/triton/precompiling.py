"""Compiles kernels in several processes at once, before a step needs them.

A kernel's variant takes seconds to compile, and a process compiles one after another. So whoever is about to compute
first goes through all it will launch with `collect_launches`, which runs nothing. `compile_in_parallel` then compiles
what was collected, each process its share, into Triton's cache on disk, where the launches find it. A process has no
need of the device: a driver that only names the architecture stands in for CUDA's, and tensors are without memory.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

__all__ = ["Driver", "collect_launches", "compile_in_parallel"]

log = logging.getLogger("pageant.kernels")

_PROCESSES_MAX = 16
_MODULE = "pageant.kernels.triton.precompiling"
_ALIGNMENT = 16  # of a tensor's address: what Triton compiles for, and what a tensor without memory has

Launch = str
"""A launch as JSON: the kernel's module and name, its arguments by their kinds, and its constants and options."""


class Driver:
    """The part of a Triton driver that a compilation asks for."""

    def __init__(self, arch: str) -> None:
        self._target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)

    def get_current_target(self) -> GPUTarget:
        """Return the architecture."""
        return self._target

    def get_current_device(self) -> int:
        """Return the only device's number."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return the default stream."""
        return 0


@contextlib.contextmanager
def collect_launches() -> Iterator[dict[Launch, None]]:
    """Collect the launches of kernels instead of running them, in the whole process.

    Two that differ in values alone that no variant depends on may both be there; that costs nothing but a look.
    """
    found: dict[Launch, None] = {}
    run = JITFunction.run

    def collect(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        launch = _encode(self, arguments, options)
        if launch is not None:
            found[launch] = None

    JITFunction.run = collect
    try:
        yield found
    finally:
        JITFunction.run = run


def _encode(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Launch | None:
    """Return a launch as JSON; None where it has what JSON or another process knows nothing of."""
    kinds = [_kind(argument) for argument in arguments]
    if None in kinds:
        return None
    try:
        return json.dumps([function.fn.__module__, function.fn.__name__, kinds, options], sort_keys=True)
    except TypeError:
        return None


def _kind(argument: Any) -> list[Any] | None:
    if isinstance(argument, torch.Tensor):
        aligned = argument.is_meta or argument.data_ptr() % _ALIGNMENT == 0
        return ["tensor", str(argument.dtype).removeprefix("torch.")] if aligned else None
    if argument is None or isinstance(argument, bool | int | float):
        return ["value", argument]
    return None


def compile_in_parallel(launches: Sequence[Launch], arch: str, processes: int | None = None) -> int:
    """Compile what `collect_launches` found, for an architecture such as sm_90; return how many processes did.

    None is started where the same was compiled before. What a process cannot compile is logged: a step will try again.
    """
    done = _cache_folder() / f"pageant-{_digest(launches, arch)}"
    if not launches or done.exists():
        return 0
    count = min(processes or len(os.sched_getaffinity(0)), _PROCESSES_MAX, len(launches))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", _MODULE, "--arch", arch],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for _ in range(count)
    ]
    # Neighbours are much alike, and take as long: each process gets one of them in turn.
    with contextlib.ExitStack() as ended:
        for process in running:
            ended.callback(process.wait)
            ended.callback(process.kill)
        for index, process in enumerate(running):
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write("\n".join(launches[index::count]))
                process.stdin.close()
                process.stdin = None
        said = [process.communicate()[1] for process in running]
    failed = [text for process, text in zip(running, said, strict=True) if process.returncode]
    if failed:
        log.warning("some kernels were not compiled beforehand: %s", failed[0].strip().rpartition("\n")[2])
    else:
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
    return count


def _cache_folder() -> Path:
    return Path(triton.knobs.cache.dir)


def _digest(launches: Sequence[Launch], arch: str) -> str:
    """Return a name for what is compiled: the launches, the architecture, Triton, and the kernels' own text."""
    digest = hashlib.sha256("\n".join([arch, triton.__version__, *sorted(launches)]).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def main() -> int:
    """Compile the launches that standard input names, one a line; 1 where any could not be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", required=True)
    triton.runtime.driver.set_active(Driver(parser.parse_args().arch))
    failed = 0
    for line in sys.stdin.readlines():  # at once: the one who writes has others to write to
        module, name, kinds, options = json.loads(line)
        arguments = [
            torch.empty(1, dtype=getattr(torch, value), device="meta") if kind == "tensor" else value
            for kind, value in kinds
        ]
        try:
            getattr(importlib.import_module(module), name).run(*arguments, grid=(1,), warmup=True, **options)
        except Exception as error:
            failed += 1
            first = str(error).partition("\n")[0]
            print(f"{module}.{name}: {type(error).__name__}: {first}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
