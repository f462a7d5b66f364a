"""Decoding of images and sounds in a process of its own, whose death costs one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pageant.actors.runtime.isolation import IsolatedDeath, Isolation

__all__ = ["decoded"]

Content = TypeVar("Content")


def decoded(
    isolation: Isolation,
    data: bytes,
    read: Callable[[bytes], Content],
    refused: type[ValueError],
    what: str,
) -> Content:
    """Return what is in a file. Blocks.

    Args:
        data: the file.
        read: takes the process's answer apart; it raises `refused` where that is a complaint.
        refused: the kind of error that says what is wrong with the file, or with decoding it now.
        what: the file's content, such as "image".
    """
    try:
        return read(isolation.call(data))
    except IsolatedDeath as error:
        raise refused(f"the {what} cannot be decoded: {error}") from None
    except OSError as error:  # which is no fault of the file
        raise refused(f"the {what} cannot be decoded now: {error}") from None
