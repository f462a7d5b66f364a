"""A topology's adapters, checked before anything loads. Knows no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pageant.actors.frontend.prompts import check_name
from pageant.models.adapters.checkpoint import RANK_MAX, AdapterCheckpoint
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.protocol.errors import BadRequest, TopologyError


def check_adapters(settings: Mapping[str, Any], base: Checkpoint) -> dict[str, str]:
    """The adapters of a model, by name, with their folders.

    Raises:
        TopologyError: not a mapping of names to folders, or what is wrong in one of them; names `adapters.NAME`.
    """
    written, rank_max = settings.get("adapters", {}), settings.get("max_lora_rank", RANK_MAX)
    if not isinstance(written, Mapping):
        raise TopologyError("adapters", f"found {written!r:.100}; expected a mapping of names to folders")
    if isinstance(rank_max, bool) or not isinstance(rank_max, int):
        raise TopologyError("max_lora_rank", f"found {rank_max!r:.100}; expected a whole number")
    for name, folder in written.items():
        place = f"adapters.{name}"
        if not isinstance(folder, str):
            raise TopologyError(place, f"found {folder!r:.100}; expected the adapter's folder")
        try:
            check_name("a name", name)
            AdapterCheckpoint(folder).targets(base, rank_max)
        except (BadRequest, CheckpointError) as error:
            raise TopologyError(place, str(error)) from None
    return dict(written)


def check_names(adapters: Sequence[str], taken: Collection[str]) -> None:
    """Refuses adapters that are called as something else is.

    Raises:
        TopologyError: names the first.
    """
    for name in adapters:
        if name in taken:
            raise TopologyError(f"adapters.{name}", f"a model or another adapter is called {name!r} too")
