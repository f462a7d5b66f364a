"""Environments and converted checkpoints of the peers: where they are, and how they are made."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from pageant.protocol.errors import BadRequest

PEERS = ("vllm", "openvino", "llama_cpp", "transformers")
FOLDER = Path(__file__).parent
HOME = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pageant" / "peers"
SHOWN_HOME = "~/.cache/pageant/peers"
"""The same for help texts, which are alike for every user."""


def peer_module(name: str) -> ModuleType:
    """A peer's file, to read its recipe.

    Raises:
        BadRequest: there is no such peer.
    """
    if name not in ("pageant", *PEERS):
        raise BadRequest(f"no peer {name!r}; expected {', '.join(PEERS)}", "beside")
    return importlib.import_module(f"pageant.scripts.bench.peers.{name}")


def setup(name: str, home: Path = HOME) -> Path:
    """Makes the environment of a peer with pinned versions, if it has its own; minutes of downloads."""
    steps: list[list[str]] = peer_module(name).INSTALL
    environment = home / name
    if steps:
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    for step in steps:
        subprocess.run([environment / "bin" / "python", "-m", "pip", "install", "-q", *step], check=True)
    return environment


def python(name: str, home: Path) -> Path:
    """The interpreter that a peer runs in.

    Raises:
        BadRequest: its environment has not been made.
    """
    if not peer_module(name).INSTALL:
        return Path(sys.executable)
    path = home / name / "bin" / "python"
    if not path.exists():
        raise BadRequest(
            f"{name} has no environment in {home}; `python -m pageant.scripts.bench.peers setup {name}` makes it",
            "beside",
        )
    return path


def command(name: str, home: Path, *arguments: str) -> list[str]:
    """Return the command that starts a peer's file in its environment."""
    return [str(python(name, home)), str(FOLDER / "serving.py"), str(FOLDER / f"{name}.py"), *arguments]


def variables(name: str, home: Path) -> dict[str, str]:
    """The environment variables of a peer's process."""
    peer = peer_module(name)
    found = dict(os.environ)
    if peer.INSTALL:
        found.pop("PYTHONPATH", None)
    # The files here bear their libraries' names: their folder stays out of the path.
    found |= {"PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"}
    if hasattr(peer, "variables"):
        found |= peer.variables(home / name)
    return found


def supports(name: str, quantization: str | None) -> bool:
    """Tell whether a peer can have such weights here."""
    return quantization in getattr(peer_module(name), "QUANTIZATIONS", (None, "int8", "int4"))


def checkpoint(name: str, model: Path, quantization: str | None, home: Path) -> Path:
    """The checkpoint in the form that a peer reads, made once and kept."""
    if quantization not in getattr(peer_module(name), "CONVERTED", ()):
        return model
    kind = quantization or "none"
    folder = home / "checkpoints" / f"{name}-{model.name}-{kind}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
            made = Path(partial) / "made"
            made.mkdir()
            subprocess.run(
                command(name, home, "convert", str(model), kind, str(made)),
                env=variables(name, home),
                stdout=sys.stderr,
                check=True,
            )
            made.rename(folder)
    return folder
