"""Logs, as text for people or as JSON lines for machines.

A record's own facts (`extra={"facts": {...}}`) are fields of its JSON object; a text shows the message only.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Literal

import msgspec

TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
"""Of a text: local time, as people compare it with their own."""

Form = Literal["text", "json"]

_encode = msgspec.json.Encoder(enc_hook=str).encode


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time (UTC), level, logger, node, message, facts and exception."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        found = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "node": self._node,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return _encode(found).decode()


def read_level(text: str) -> int:
    """Return the number of a log level, given by name (in any case) or by number.

    Raises:
        ValueError: there is no level of that name.
    """
    level = int(text) if text.isdigit() else logging.getLevelNamesMapping().get(text.upper())
    if level is None:
        raise ValueError(f"found {text!r}; expected debug, info, warning or error")
    return level


def configure(level: str | int, form: Form, node: str) -> None:
    """Make this process log to standard error."""
    handler = logging.StreamHandler()
    text = logging.Formatter(f"%(asctime)s %(levelname)s {node}: %(message)s", TIME_FORMAT)
    handler.setFormatter(JsonFormatter(node) if form == "json" else text)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def current_form() -> Form:
    """Return the form in which this process logs, for its children."""
    handlers = logging.getLogger().handlers
    return "json" if any(isinstance(one.formatter, JsonFormatter) for one in handlers) else "text"
