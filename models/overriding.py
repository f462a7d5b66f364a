"""A checkpoint with another configuration: a folder with its own config.json, and links to the files of the first.

Whatever reads a checkpoint reads such a folder, transformers' own code included. It lies in the user's cache folder,
under a name that follows from what it holds, and takes a few kilobytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pageant.models.cache import cache_folder, make_folder
from pageant.models.config import read_json
from pageant.models.errors import CheckpointError

__all__ = ["override_config"]

_CONFIG = "config.json"


def override_config(
    folder: Path, overrides: Mapping[str, Any], config_folder: Path | None = None, cache: Path | None = None
) -> Path:
    """Return the folder of a checkpoint whose configuration says something else.

    Args:
        overrides: laid over config.json. A section of it (`text_config`) is overridden key by key, any other value as
            a whole.
        config_folder: whose config.json is read instead of the checkpoint's own.
        cache: where the folder is made; the user's cache folder where None.

    Raises:
        CheckpointError: there is no config.json, or it is none.
    """
    source = (config_folder or folder) / _CONFIG
    if not source.is_file():
        raise CheckpointError(
            source.parent, f"no {_CONFIG}", "a configuration", "Name the folder that holds it."
        )
    content = json.dumps(_laid_over(read_json(source), overrides), indent=1, sort_keys=True)
    files = sorted(file for file in folder.absolute().iterdir() if file.name != _CONFIG)
    named = "\0".join([content, *map(str, files)])
    made = (cache or cache_folder("overridden")) / hashlib.blake2b(named.encode(), digest_size=12).hexdigest()
    if not made.is_dir():
        make_folder(made, {_CONFIG: content}, {file.name: file for file in files})
    return made


def _laid_over(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    found, overrides = dict(config), _in_words_of(config, overrides)
    if "rope_parameters" in overrides:
        found.pop("rope_scaling", None)
    for key, value in overrides.items():
        section = found.get(key)
        nested = key.endswith("_config") and isinstance(section, Mapping) and isinstance(value, Mapping)
        found[key] = _laid_over(section, value) if nested else value  # type: ignore[arg-type]
    return found


def _in_words_of(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """Overrides of rotary embeddings, written as the configuration writes them.

    `rope_parameters` holds what `rope_scaling` and `rope_theta` said before transformers 5.
    """
    older = {"rope_scaling", "rope_theta"} & overrides.keys()
    section = config.get("rope_parameters")
    if not isinstance(section, Mapping) or "rope_parameters" in overrides or not older:
        return overrides
    theta = overrides.get("rope_theta", section.get("rope_theta"))
    scaling = overrides.get("rope_scaling", section) or {}
    parameters = {**scaling, **({} if theta is None else {"rope_theta": theta})}
    rest = {key: value for key, value in overrides.items() if key not in older}
    return {**rest, "rope_parameters": parameters}
