"""A topology's adapters, checked before anything loads. Knows no torch."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pageant.actors.frontend.prompts import check_name
from pageant.models.adapters.checkpoint import RANK_MAX, AdapterCheckpoint
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.models.hub import resolve
from pageant.protocol.errors import BadRequest, TopologyError


def check_adapters(settings: Mapping[str, Any], base: Checkpoint) -> dict[str, str]:
    """Return the adapters of a model, by name, with their folders: those that are given, or snapshots of hub ids.

    Raises:
        TopologyError: not a mapping of names to folders, or what is wrong in one of them; names `adapters.NAME`.
    """
    written, rank_max = settings.get("adapters", {}), settings.get("max_lora_rank", RANK_MAX)
    if not isinstance(written, Mapping):
        raise TopologyError("adapters", f"found {written!r:.100}; expected a mapping of names to folders")
    if isinstance(rank_max, bool) or not isinstance(rank_max, int):
        raise TopologyError("max_lora_rank", f"found {rank_max!r:.100}; expected a whole number")
    found = {}
    for name, folder in written.items():
        place = f"adapters.{name}"
        if not isinstance(folder, str):
            raise TopologyError(place, f"found {folder!r:.100}; expected the adapter's folder")
        try:
            check_name("a name", name)
            found[name] = adapter_folder(folder)
            AdapterCheckpoint(found[name]).targets(base, rank_max)
        except (BadRequest, CheckpointError) as error:
            raise TopologyError(place, str(error)) from None
    return found


def adapter_folder(named: str) -> str:
    """Return an adapter's folder: the one that is named, or the snapshot of a hub id ("owner/name").

    Raises:
        CheckpointError: there is no such folder, and the hub does not have it.
    """
    is_hub_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", named) and not Path(named).exists()
    return str(resolve(named)) if is_hub_id else named


def check_names(adapters: Sequence[str], taken: Collection[str]) -> None:
    """Refuses adapters that are called as something else is.

    Raises:
        TopologyError: names the first.
    """
    for name in adapters:
        if name in taken:
            raise TopologyError(f"adapters.{name}", f"a model or another adapter is called {name!r} too")
