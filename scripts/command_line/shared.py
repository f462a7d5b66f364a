"""Options and habits that several commands share."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

__all__ = ["Json", "find_classes_here"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def find_classes_here() -> None:
    """Let a class of the user's own stand in the folder where a command is given."""
    sys.path.insert(0, os.getcwd())
