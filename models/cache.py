"""Folders that are made from other files, in the user's cache folder: whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_folder", "make_folder"]


def cache_folder(name: str) -> Path:
    """Return the folder of that name in the user's cache folder, whether it is there or not."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pageant" / name


def make_folder(made: Path, texts: Mapping[str, str], links: Mapping[str, Path]) -> None:
    """Make a folder with some files, by names that may have a folder in them, and links to others.

    Several engines may make the same one at once: the first one's stays.
    """
    made.parent.mkdir(parents=True, exist_ok=True)
    partly = Path(tempfile.mkdtemp(dir=made.parent))
    try:
        for name, text in texts.items():
            (partly / name).parent.mkdir(exist_ok=True)
            (partly / name).write_text(text, encoding="utf-8")
        for name, file in links.items():
            (partly / name).symlink_to(file)
        partly.rename(made)
    except OSError:
        shutil.rmtree(partly, ignore_errors=True)
        if not made.is_dir():  # another was not quicker
            raise
