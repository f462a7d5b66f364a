"""Tools of Anthropic's messages: functions, and those that Anthropic has defined."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pageant.actors.http.chat.tools import ChosenFunction, ChosenTool, ToolFunction
from pageant.actors.http.chat.tools import Tool as ChatTool
from pageant.actors.http.chat.tools import ToolChoice as ChatToolChoice
from pageant.protocol.errors import BadRequest

__all__ = ["Tool", "ToolChoice"]


def _schema(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_EDITS = ("view", "create", "str_replace", "insert")
_EDITED: dict[str, Any] = {
    "path": _TEXT,
    "view_range": {"type": "array", "items": _NUMBER},
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _NUMBER,
    "insert_text": _TEXT,
}
"""What the commands of `_EDITS` are about."""
_DEFINED = {
    "bash": (
        "Runs a command in a shell that goes on from call to call; `restart` begins a new one.",
        _schema((), command=_TEXT, restart={"type": "boolean"}),
    ),
    "text_editor": (
        "Views, creates and edits files.",
        _schema(
            ("command", "path"),
            command={"type": "string", "enum": list(_EDITS)},
            **_EDITED,
        ),
    ),
    "memory": (
        "Views and edits files of notes under /memories.",
        _schema(
            ("command",),
            command={"type": "string", "enum": [*_EDITS, "delete", "rename"]},
            **_EDITED,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
}
"""Tools that clients run, and that requests name without a schema, by their types' beginnings."""


class Tool(msgspec.Struct, kw_only=True):
    """A tool that the model may call: a function, or one that Anthropic has defined, by its type."""

    name: str | None = None
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    cache_control: Any = None

    @staticmethod
    def is_read(given: dict[str, Any]) -> bool:
        """Tell whether its fields are read. Other types may have other values under the same names."""
        kind = given.get("type")
        is_function = kind in (None, "custom") or given.get("input_schema") is not None
        return is_function or (isinstance(kind, str) and _defined(kind) is not None)

    @property
    def _defined(self) -> tuple[str, dict[str, Any]] | None:
        return _defined(self.type or "")

    @property
    def is_told(self) -> bool:
        """Tell whether the model is offered the tool. Others are run by Anthropic's servers."""
        is_function = self.type in (None, "custom") or self.input_schema is not None
        return is_function or self._defined is not None

    def chat_tool(self, place: str) -> ChatTool:
        """Return the tool as chats have it.

        Raises:
            BadRequest: it has no name.
        """
        if self.name is None:
            raise BadRequest(f"{place} has no name; expected one", "tools")
        description, schema = self.description, self.input_schema
        if schema is None and self._defined is not None:
            description, schema = description or self._defined[0], self._defined[1]
        return ChatTool(function=ToolFunction(name=self.name, description=description, parameters=schema))


def _defined(kind: str) -> tuple[str, dict[str, Any]] | None:
    """Return the description and the schema of a tool that Anthropic has defined, by its type."""
    name, _, version = kind.rpartition("_")
    return _DEFINED.get(name) if version.isdigit() else None


class ToolChoice(msgspec.Struct, kw_only=True):
    """The choice of the tools that may be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def chat_choice(self) -> ChatToolChoice:
        """Return the choice as chats have it.

        Raises:
            BadRequest: it says that a tool has to be called, and not which.
        """
        if self.type == "tool":
            if self.name is None:
                raise BadRequest("tool_choice has no name; expected a tool's", "tool_choice")
            return ChosenTool(function=ChosenFunction(name=self.name))
        return "required" if self.type == "any" else self.type
