"""Compiles kernels for a device that is not here: launches on tensors without memory become compilations.

A driver that only names a target stands in for CUDA's. What is compiled is the very variant that the same launch would
need on the device, under the same key of Triton's cache: on a machine with that device nothing is compiled again.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.runtime.jit import JITFunction

from pageant.kernels.triton.precompiling import Driver

__all__ = ["DEVICES", "SHARED_MAX", "compile_launches", "inspect_cubin", "longest_loop"]

DEVICES = {
    "sm_80": SimpleNamespace(major=8, minor=0, multi_processor_count=108),
    "sm_89": SimpleNamespace(major=8, minor=9, multi_processor_count=128),
    "sm_90": SimpleNamespace(major=9, minor=0, multi_processor_count=132),
    "sm_100": SimpleNamespace(major=10, minor=0, multi_processor_count=148),
    "sm_120": SimpleNamespace(major=12, minor=0, multi_processor_count=170),
}
"""The properties that kernels ask of a device, by its architecture."""

SHARED_MAX = {"sm_80": 166912, "sm_89": 101376, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376}
"""Bytes of shared memory that a program may have."""

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

Heard = Callable[[Any, Any, float], None]
"""Is told the function, what it was compiled to, and the seconds that took."""


def compile_launches(arch: str, heard: Heard, *, share: tuple[int, int] = (0, 1)) -> None:
    """Let each later launch in this process compile its kernel for `arch` and run nothing.

    Args:
        share: (index, count): only those variants are compiled that are this process's of so many.
    """
    triton.runtime.driver.set_active(Driver(arch))
    properties: Any = DEVICES[arch]
    torch.cuda.get_device_properties = lambda device=None: properties
    run = JITFunction.run
    index, count = share
    seen: set[str] = set()

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        variant = _variant(self, arguments, options)
        if variant in seen or zlib.crc32(variant.encode()) % count != index:
            return
        seen.add(variant)
        began = time.perf_counter()
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        _compile_launcher(kernel)
        heard(self, kernel, time.perf_counter() - began)

    JITFunction.run = compile_only


def _compile_launcher(kernel: Any) -> None:
    """Compile the C function that launches kernels of this signature, which Triton 3.6 makes for each.

    It is linked with the driver's library: where there is none, it is left out.
    """
    from triton.backends.nvidia import driver

    if not hasattr(driver, "make_launcher"):
        return
    with contextlib.suppress(AssertionError, ImportError, OSError, subprocess.CalledProcessError):
        driver.CudaLauncher(kernel.src, kernel.metadata)


def _variant(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Return a name for all that a compilation can depend on, much as Triton's own key has it."""

    def kind(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return str(value.dtype)
        if isinstance(value, int) and not isinstance(value, bool):
            return "1" if value == 1 else "16" if value % 16 == 0 else "int"
        return type(value).__name__

    kinds = ",".join(map(kind, arguments))
    return f"{function.fn.__module__}.{function.fn.__name__}({kinds}){sorted(options.items(), key=str)}"


def inspect_cubin(cubin: bytes) -> dict[str, int]:
    """Return what a kernel needs, and what it does.

    `registers` are a thread's; `stack` are the bytes to which they are spilled. `loop` are the instructions of the
    longest loop that holds no other. `from_registers` are the products of warp groups with an operand in registers.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _said("cuobjdump", "-res-usage", file.name)
        listing = _said("nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    return {
        "registers": int(found[1]),
        "stack": int(found[2]),
        "loop": longest_loop(listing),
        "from_registers": len(re.findall(r"GMMA\.\S+ R\d+, R\d+", listing)),
    }


def _said(tool: str, *arguments: str) -> str:
    return subprocess.run([_TOOLS / tool, *arguments], capture_output=True, text=True, check=True).stdout


def longest_loop(listing: str) -> int:
    """Return the instructions of the longest innermost loop of a listing of nvdisasm's; 0 where there is none."""
    count = 0
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for line in listing.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = count
        elif re.match(r"\s*/\*[0-9a-f]{4,}\*/", line):
            count += 1
            jump = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
            # A jump back ends a loop. One to itself is the padding behind a kernel's end.
            if jump and jump[1] in labels and labels[jump[1]] < count - 1:
                loops.append((labels[jump[1]], count))
    innermost = [
        stop - start
        for start, stop in loops
        if not any((a, b) != (start, stop) and start <= a and b <= stop for a, b in loops)
    ]
    return max(innermost, default=0)
