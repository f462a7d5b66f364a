"""Resolution of what a user calls a model to the folder that it is in."""

from __future__ import annotations

import re
from pathlib import Path

from pageant.models.errors import CheckpointError
from pageant.models.gguf.folder import SUFFIX, as_folder, is_gguf

__all__ = ["resolve"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FILES = ("*.json", "*.safetensors", "tokenizer*", "*.model", "*.txt", "*.jinja")
"""Descriptions, weights and tokenizers: no code, and nothing pickled."""
_OTHERS = ("*/*", "consolidated*")
"""The same weights again, in other layouts."""
_EXPECTED = "a folder with config.json and safetensors weights, a GGUF file, or the id of a model on the hub"


def resolve(model: str, revision: str | None = None) -> Path:
    """Return the folder of a model: a local one, a snapshot of a hub id ("owner/name"), or one made from a GGUF file.

    A snapshot is downloaded unless it is in the hub's cache; HF_HUB_OFFLINE is respected.

    Args:
        revision: a branch, a tag or a commit of the hub's repository; None is the hub's default.

    Raises:
        CheckpointError: there is no such folder, it is a file of another kind or a broken one, it is local though a
            revision is wanted, or the hub does not have it or cannot be reached.
    """
    path = Path(model).expanduser()
    if path.is_dir() or is_gguf(path):
        if revision is not None:
            raise CheckpointError(
                path, f"a local model with the revision {revision!r}", "a hub id", "Leave the revision out."
            )
        return as_folder(path)
    if path.exists():
        raise CheckpointError(path, "a file", _EXPECTED, "Name the folder that it is in.")
    if path.suffix == SUFFIX:
        raise CheckpointError(path, "no such file", _EXPECTED, "Check the spelling of the path.")
    if _HUB_ID.fullmatch(model) is None:
        raise CheckpointError(path, "no such folder", _EXPECTED, "Check the spelling of the path.")
    return _snapshot(model, revision)


def _snapshot(model: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download  # slow to import, and not needed for a local folder

    try:
        return Path(
            snapshot_download(
                model, revision=revision, allow_patterns=list(_FILES), ignore_patterns=list(_OTHERS)
            )
        )
    except Exception as error:  # the hub's client has no common base class for what it raises
        cause = str(error).strip().split("\n")[0]
        raise CheckpointError(
            model,
            f"no such folder here, and the hub did not give it ({type(error).__name__}: {cause})",
            _EXPECTED,
            "Check the spelling, that the hub can be reached (with HF_HUB_OFFLINE=1: that the model is in its "
            "cache), and that you may read the model (`hf auth login`).",
        ) from error
