"""vLLM's source distribution: its examples, its tests and its documentation, unpacked in the user's cache folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.32.0"
CLIENT_PACKAGES = ("opentelemetry-sdk==1.45.2", "opentelemetry-exporter-otlp-proto-grpc==1.45.2")


def cache() -> Path:
    """Return the folder in which sources and stand-ins are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pageant" / "dropin"


def find_sources(given: Path | None = None) -> Path:
    """Return vLLM's unpacked source distribution; fetch it with pip where it is missing.

    Raises:
        FileNotFoundError: the folder that is given has no examples.
    """
    root = given or cache() / f"vllm-{VERSION}"
    if (root / "examples").is_dir():
        return root
    if given is not None:
        raise FileNotFoundError(f"{given}: no examples in it; expected vLLM's unpacked source distribution")
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as made:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:all:"]
        command += ["--no-build-isolation", "--dest", made, f"vllm=={VERSION}"]
        # Pip goes on to ask a source distribution for its metadata, which needs tools that nothing here needs.
        subprocess.run(command, check=False, timeout=900)
        archive = next(Path(made).glob("vllm-*.tar.gz"))
        with tarfile.open(archive) as opened:
            opened.extractall(made, filter="data")
        (Path(made) / f"vllm-{VERSION}").rename(root)
    return root


def client_packages() -> Path:
    """Return a folder of packages that examples import beside an SDK; fetch them with pip where it is missing."""
    folder = cache() / "clients"
    if not folder.is_dir():
        partly = folder.with_suffix(".partly")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--target",
            str(partly),
            *CLIENT_PACKAGES,
        ]
        subprocess.run(command, check=True, timeout=600)
        partly.rename(folder)
    return folder
