"""The device, its software and the code that is measured."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from pageant.scripts.bench.gpu_check.cases import Recorder
from pageant.scripts.bench.gpu_check.environment import ROOT

__all__ = ["commit_here", "run", "tree_digest"]

_PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "numpy",
    "msgspec",
    "pyzmq",
    "llguidance",
    "pytest",
    "hypothesis",
)
_FOLDERS = ("actors", "kernels", "models", "protocol", "scripts", "tests")
_SMI = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "temperature.gpu")


def run(recorder: Recorder, tiny: bool) -> None:
    """Record the facts that need no device first, then those of the device."""
    import torch

    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "compiler": shutil.which(os.environ.get("CC", "gcc")),
        "commit": commit_here(),
        "tree": tree_digest(ROOT),
        "cuda": torch.version.cuda,
        **{name: _version(name) for name in _PACKAGES},
    }
    if not tiny and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": properties.L2_cache_size,
            "driver": _smi().get("driver_version"),
            "smi": _smi(),
        }
    else:
        facts["device"] = "cpu"
    recorder.add("facts", **facts)
    with recorder.contain("triton backend"):
        from pageant import kernels

        device = "cpu" if facts["device"] == "cpu" else "cuda:0"
        reason = None if device == "cpu" else kernels.why_not_triton(device)
        recorder.add("triton backend", error=reason) if reason else recorder.add(
            "triton backend", usable=True
        )


def _version(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def _smi() -> dict[str, str]:
    """Return what nvidia-smi says of the first device; nothing where it is not there."""
    query = ["nvidia-smi", f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader", "-i", "0"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_SMI, (value.strip() for value in said.split(",")), strict=False))


def commit_here() -> str | None:
    """Return the commit of this checkout, marked where files differ from it; None without git's folder."""
    try:
        commit, changes = (
            subprocess.run(
                ["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True
            ).stdout
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.strip() + ("+changes" if changes.strip() else "")


def tree_digest(root: Path) -> str:
    """Return a digest of the code: it says which commit was measured on a machine without git's folder."""
    digest = hashlib.blake2b(digest_size=16)
    for folder in _FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if (
                file.is_file()
                and file.suffix in (".py", ".cpp", ".h", ".json", ".toml")
                and "__pycache__" not in file.parts
            ):
                digest.update(str(file.relative_to(root)).encode() + b"\0")
                digest.update(file.read_bytes())
    return digest.hexdigest()
