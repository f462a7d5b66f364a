"""Resolution of `speculation` before anything is loaded. Knows no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pageant.actors.runtime.topology import Topology
from pageant.models.checkpoint import Checkpoint, resolve
from pageant.models.tensor_files import read_header
from pageant.protocol.checks import expected
from pageant.protocol.drafting import MODEL_METHODS, Speculation
from pageant.protocol.errors import TopologyError

__all__ = ["settle_speculation"]

SETTING = "speculation"
NAMES_HERE = {"num_speculative_tokens": "tokens"}  # of what vLLM has
_MEDUSA = re.compile(r"(medusa_heads?\.|blocks\.)?\d+\.(layers\.)?\d+\.linear\.weight")


def settle_speculation(topology: Topology) -> Topology:
    """The topology, and those of its models, with `speculation.model` found, and the method that `auto` stands for:
    that of the heads or the draft model in this folder, and n-grams without one.

    Raises:
        CheckpointError: there is no such folder, or no model in it.
        TopologyError: a key that there is not, or another method than the folder is for.
    """
    settings = {
        name: _settled(value) if name == SETTING else value for name, value in topology.settings.items()
    }
    models = {name: settle_speculation(part) for name, part in topology.models.items()}
    return msgspec.structs.replace(topology, settings=settings, models=models)


def _settled(speculation: Any) -> Any:
    if not isinstance(speculation, Mapping):
        return speculation
    for key in speculation:
        if key not in Speculation.__struct_fields__:
            hint = expected(str(key), Speculation.__struct_fields__, NAMES_HERE)
            raise TopologyError(f"{SETTING}.{key}", f"no such key; {hint}")
    found, model, method = dict(speculation), speculation.get("model"), speculation.get("method")
    if isinstance(model, str):
        found["model"] = str(resolve(model))
    if method == "auto":
        found["method"] = _method_of(found["model"]) if isinstance(model, str) else "ngram"
    elif method in MODEL_METHODS and isinstance(model, str):
        held = _method_of(found["model"])
        if held != method:
            raise TopologyError(
                f"{SETTING}.method", f"is {method!r}, but {model} holds {held}; expected that, or auto"
            )
    return found


def _method_of(model: str) -> str:
    """Return the method of a checkpoint by its tensors' names: the config.json of published heads is not
    reliable.
    """
    files = Checkpoint(Path(model)).weight_files
    names = {name.removeprefix("model.") for file in files for name in read_header(file)}
    if any(_MEDUSA.fullmatch(name) for name in names):
        return "medusa"
    return "eagle" if "fc.weight" in names else "draft"
