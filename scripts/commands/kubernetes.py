"""`pageant kubernetes`: prints the manifests of a topology."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pageant.actors.client.settings import topology_of
from pageant.actors.runtime.transport.keys import make_keys, read_keys
from pageant.protocol.errors import ArgumentError, TopologyError
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.kubernetes.manifests import KEY, Wanted, write
from pageant.scripts.kubernetes.pods import divide

NAME_MAX = 40
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_MEMORY = re.compile(r"[1-9][0-9]*(Mi|Gi|Ti|M|G|T)?", re.ASCII)


def manifests(arguments: dict[str, Any], file: Path | None, wanted: Wanted, keys: Path | None) -> str:
    """Return the manifests of the topology that these arguments describe.

    Args:
        file: the topology's, if it is not among the arguments.
        keys: the file with the topology's key; None takes the one that the topology names, if it is there, or makes
            a new one.

    Raises:
        ArgumentError: a value that Kubernetes would refuse.
        TopologyError: see `parse` and `divide`; or it names no model.
    """
    if not _LABEL.fullmatch(wanted.name) or len(wanted.name) > NAME_MAX:
        raise ArgumentError(
            "--name",
            f"found {wanted.name!r:.100}; expected up to {NAME_MAX} of a-z, 0-9 and '-', a letter first",
        )
    if wanted.memory is not None and not _MEMORY.fullmatch(wanted.memory):
        raise ArgumentError("--memory", f"found {wanted.memory!r:.100}; expected a size, such as 16Gi")
    if not wanted.claim_path.startswith("/"):
        raise ArgumentError(
            "--claim-path", f"found {wanted.claim_path!r:.100}; expected a path from the root on"
        )
    settings = dict(arguments)
    if file is not None:
        settings["topology"] = file
        if settings.get("model") == str(DEMO_MODEL):  # which commands fill in where no topology is named
            del settings["model"]
    topology = topology_of(settings.pop("model", None), settings.pop("topology", None), settings)
    if topology.model is None and not topology.models:
        raise TopologyError("model", "no model is named; expected its path in the pods, or a hub id")
    named = keys or (
        Path(topology.keys) if topology.keys is not None and Path(topology.keys).exists() else None
    )
    found = make_keys() if named is None else read_keys(named)
    return write(divide(topology, KEY), wanted, found)
