"""Reasoning as clients keep it who do not keep its text: an opaque string, which is the text again when it comes back.

A client that stores nothing here (`store: false`) sends `encrypted_content` back with the next request. It is opaque to
clients, and no secret: whoever has it was given the text too.
"""

from __future__ import annotations

import base64
import binascii

__all__ = ["opened", "sealed"]

_PREFIX = "pageant-1-"


def sealed(text: str) -> str:
    """Return a text as an opaque string."""
    return _PREFIX + base64.urlsafe_b64encode(text.encode()).decode()


def opened(opaque: str | None) -> str | None:
    """Return the text of an opaque string; None where it was made elsewhere."""
    if opaque is None or not opaque.startswith(_PREFIX):
        return None
    try:
        return base64.b64decode(opaque.removeprefix(_PREFIX), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
