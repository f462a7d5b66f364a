"""Errors of a link between two nodes."""

from __future__ import annotations

from pageant.protocol.errors import PageantError


class LinkRefused(PageantError):
    """The other node speaks another protocol, or is another one than was expected."""


class NoAnswer(LinkRefused):
    """The other node is not there, or too busy."""


class NotYet(LinkRefused):
    """Another node of the same name may be alive: ask again."""
