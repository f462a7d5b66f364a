"""`pageant doctor`: what was found on this machine, and what that means."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pageant import kernels
from pageant.actors.runtime.version import VERSION
from pageant.protocol.plugins import PLUGINS, plugins

PACKAGES = (
    "torch",
    "transformers",
    "safetensors",
    "tokenizers",
    "msgspec",
    "pyzmq",
    "uvloop",
    "numpy",
    "triton",
)
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
BFLOAT16_MEANS = {
    "amx": "computed by tiles",
    "avx512_bf16": "computed by its own instruction",
    "portable": "emulated: float32 may be as fast",
}


@dataclass(frozen=True)
class Finding:
    """Finding of one check. `means` is for whoever has to decide something by it."""

    what: str
    found: str
    means: str
    good: bool = True


def doctor(model: str | None = None, *, as_json: bool) -> None:
    """Print every finding, and that of a model if one is named."""
    findings = examine()
    if model is not None:
        findings.append(examine_model(model))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
        return
    for finding in findings:
        mark = "ok " if finding.good else "!! "
        print(f"{mark}{finding.what:<14} {finding.found}\n{'':18}{finding.means}")


def list_kernels(*, as_json: bool) -> None:
    """Print which kernel computes products of which weights, by the best instruction set of this machine."""
    from pageant.kernels.cpu.choices import choices_of
    from pageant.kernels.cpu.levels import levels_here

    level = levels_here()[0]
    rows = [
        {"weights": one.layout, "x": one.dtype, "rows": count, "kernel": words}
        for one in choices_of(level)
        for count, words in one.rows()
    ]
    if as_json:
        print(json.dumps({"level": level, "products": rows}, indent=1))
        return
    print(f"products by the CPU backend, compiled for {level}")
    for row in ({name: name for name in rows[0]}, *rows):
        print(f"{row['weights']:<16} {row['x']:<5} {row['rows']:<8} {row['kernel']}")


def examine() -> list[Finding]:
    """Looks at everything that decides what Pageant can do here."""
    return [
        Finding(
            "pageant",
            VERSION,
            f"on Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        ),
        *_packages(),
        *(_found(look) for look in (_cpu, _memory, _gpu, _kernels, _compiler, _sockets, _plugins)),
    ]


def examine_model(model: str) -> Finding:
    """Look at a checkpoint's configuration and headers: whether it can be loaded, and how its weights are kept."""
    from pageant.models import Checkpoint, CheckpointError, resolve

    try:
        checkpoint = Checkpoint(resolve(model))
        checkpoint.check()
    except CheckpointError as error:
        return Finding("model", f"{model} cannot be loaded", str(error), good=False)
    architecture = ", ".join(checkpoint.config["architectures"])
    found = f"{architecture} in {checkpoint.dtype}, {checkpoint.num_bytes / 2**30:.2f} GiB of files"
    ready = checkpoint.ready
    return Finding("model", found, "not quantised" if ready is None else ready.description)


def _found(look: Callable[[], Finding]) -> Finding:
    """Return what a check finds, whatever is broken here: that is what a doctor is asked for."""
    try:
        return look()
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        return Finding(look.__name__.strip("_"), "could not be looked at", reason, good=False)


def _packages() -> list[Finding]:
    findings = []
    for name in PACKAGES:
        try:
            findings.append(Finding(name, importlib.metadata.version(name), "installed"))
        except importlib.metadata.PackageNotFoundError:
            optional = name == "triton"
            means = (
                "only needed on a GPU: pip install '.[gpu]' in the project's folder"
                if optional
                else "is needed: run scripts/setup"
            )
            findings.append(Finding(name, "not installed", means, good=optional))
    return findings


def _plugins() -> Finding:
    named = os.environ.get(PLUGINS)
    means = "packages can add some: docs/plugins.md" if named is None else f"{PLUGINS} is {named!r}"
    found = [f"{one.name} ({one.group}, {one.package} {one.version})" for one in plugins()]
    return Finding("plugins", ", ".join(found) or "none", means)


def _cpu() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags: set[str] = set()
    info = Path("/proc/cpuinfo")
    if info.exists():
        line = next((line for line in info.read_text().splitlines() if line.startswith("flags")), "")
        flags = set(line.split())
    known = [flag for flag in CPU_FLAGS if flag in flags]
    found = f"{cores} cores for this process, {', '.join(known) or 'no vector flags known'}"
    return Finding("cpu", found, "as many threads compute, unless `threads` says otherwise")


def _memory() -> Finding:
    from pageant.actors.executor.runners.memory import CPU_SHARE, available_bytes

    free = available_bytes() / 2**30
    return Finding(
        "memory",
        f"{free:.1f} GiB free",
        f"the KV cache takes up to {free * CPU_SHARE:.1f} GiB of it unless kv_cache_memory says otherwise",
        good=free > 1,
    )


def _gpu() -> Finding:
    code = (
        "import torch; print([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]"
        " if torch.cuda.is_available() else [])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    names = result.stdout.strip()
    if result.returncode:
        return Finding("gpu", "torch could not be asked", result.stderr.strip().splitlines()[-1], good=False)
    if names == "[]":
        return Finding("gpu", "none", "models run on the CPU (device: cpu)")
    reason = kernels.why_not_triton("cuda:0")
    if reason is not None:
        return Finding("gpu", names, f"device: cuda:0 takes the reference kernels: {reason}", good=False)
    return Finding("gpu", names, "set device: cuda:0 for the executor, whose kernels: auto is triton there")


def _kernels() -> Finding:
    from pageant.kernels.cpu import BuildError
    from pageant.kernels.cpu.library import load_library

    names = ", ".join(kernels.BACKENDS)
    try:
        library = load_library()
    except (BuildError, ValueError) as error:
        reason = str(error).splitlines()[0]
        return Finding("kernels", names, f"kernels: auto is reference on a CPU: {reason}", good=False)
    bfloat16 = BFLOAT16_MEANS.get(library.level, "computed as floats, from half the memory")
    means = f"kernels: auto is cpu on a CPU, compiled for {library.level} in {library.path.parent}"
    return Finding("kernels", names, f"{means}; products of bfloat16 are {bfloat16}")


def _compiler() -> Finding:
    from pageant.kernels.cpu.build import find_compiler

    found = [name for name in ("g++", "clang++", "ninja", "nvcc") if shutil.which(name)]
    means = (
        "the CPU kernels are compiled once, in some 25 s of processor time over all cores"
        if find_compiler()
        else "without g++ or clang++ the slower reference kernels, plain torch, are used"
    )
    return Finding("compilers", ", ".join(found) or "none", means)


def _sockets() -> Finding:
    import zmq

    ipc = zmq.has("ipc")
    means = "nodes on this host talk over ipc" if ipc else "set transport: tcp"
    return Finding("zeromq", f"{zmq.zmq_version()}, ipc {'there' if ipc else 'missing'}", means, good=ipc)
