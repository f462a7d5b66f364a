"""A checkpoint's folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pageant.models.errors import CheckpointError
from pageant.models.pooling.sentence_transformers import module_folders

__all__ = ["appearing_whole", "copy_others", "refuse_existing"]

_WEIGHTS = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".npz"),
    *(".safetensors.index.json", ".bin.index.json"),
)
"""How the names of files end that are weights, or lists of them."""


def refuse_existing(target: Path) -> None:
    """Raise CheckpointError where a folder cannot be made: it is there already, or its parent is not."""
    if target.exists() or target.is_symlink():
        raise CheckpointError(
            target, "something that is there already", "a new folder", "Name another: nothing is overwritten."
        )
    if not target.parent.is_dir():
        raise CheckpointError(
            target.parent, "no such folder", "the folder to write into", "Make it, or name another."
        )


@contextmanager
def appearing_whole(target: Path, num_bytes: int) -> Iterator[Path]:
    """Give a folder to write into, which becomes `target` when the context ends without an error.

    Until then it has another name, beside the target; an error removes it. Where the process ends at once, it stays,
    under a name that ends with .incomplete and the process's number.

    num_bytes: bytes that will be written, about; there must be room for them on the disk.

    Raises CheckpointError for a target that exists, no room, or an error of the system.
    """
    refuse_existing(target)
    free = shutil.disk_usage(target.parent).free
    if free < num_bytes:
        raise CheckpointError(
            target,
            f"{free / 1e9:.2f} GB free",
            f"{num_bytes / 1e9:.2f} GB",
            "Make room, or name another disk.",
        )
    folder = target.with_name(f".{target.name}.incomplete-{os.getpid()}")
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield folder
        refuse_existing(target)
        folder.rename(target)
    except OSError as error:
        raise CheckpointError(
            target, f"an error of the system ({error})", "a folder that can be written", "See the error."
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_others(source: Path, folder: Path) -> None:
    """Copy all of a checkpoint but weights and config.json: tokenizer, templates, generation's defaults, and the
    folders of modules that pool.
    """
    for file in sorted(source.iterdir()):
        is_other = file.name != "config.json" and not file.name.startswith(".")
        if file.is_file() and is_other and not file.name.endswith(_WEIGHTS):
            shutil.copyfile(file, folder / file.name)
    for part in module_folders(source):
        if (source / part).is_dir():
            shutil.copytree(source / part, folder / part)
