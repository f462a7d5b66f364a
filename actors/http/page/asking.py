"""Tells a browser that asks for a page from a program that asks for data."""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.enums import ScopeType

_HTML = "text/html"


def wants_page(connection: ASGIConnection[Any, Any, Any, Any]) -> bool:
    """Tell whether a request names HTML among what it accepts. Browsers do; programs accept anything."""
    if connection.scope["type"] != ScopeType.HTTP or connection.scope["method"] not in ("GET", "HEAD"):
        return False
    accepted = (part.partition(";") for part in connection.headers.get("accept", "").split(","))
    return any(kind.strip().lower() == _HTML and not _is_zero(rest) for kind, _, rest in accepted)


def _is_zero(parameters: str) -> bool:
    """Tell whether a media type's parameters give it the weight 0, which means not acceptable."""
    weights = (one.strip() for one in parameters.split(";"))
    return any(one.startswith("q=") and not one[2:].strip("0.") for one in weights)
