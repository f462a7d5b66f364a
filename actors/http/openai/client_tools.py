"""Tools of OpenAI's that clients run: requests name them without a schema, and each has items of its own."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["CLIENT_TOOLS", "ClientTool", "called_with"]

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_WORDS = {"type": "array", "items": _TEXT}


class ClientTool(msgspec.Struct, frozen=True):
    """A tool that a client runs.

    Attributes:
        field: of a call's item, which has the arguments.
        whole: the argument that a text stands for, where the model writes no object.
        description, properties, required: of the function that a model is told of.
        constant: fields of the arguments that say nothing to a model.
    """

    field: str
    whole: str
    description: str
    properties: dict[str, Any]
    required: tuple[str, ...]
    constant: dict[str, Any] = msgspec.field(default_factory=dict)

    def function(self, name: str) -> dict[str, Any]:
        """Return the function that a model is told of."""
        parameters = {"type": "object", "properties": self.properties, "required": list(self.required)}
        return {"name": name, "description": self.description, "parameters": parameters}

    def arguments(self, given: Any) -> dict[str, Any]:
        """Return the arguments of a past call, as the model wrote them."""
        fields = given if isinstance(given, dict) else {}
        return {
            name: value for name, value in fields.items() if value is not None and name not in self.constant
        }


CLIENT_TOOLS = {
    "local_shell": ClientTool(
        field="action",
        whole="command",
        description="Runs a command in the user's shell, and returns what it writes.",
        properties={"command": _WORDS, "working_directory": _TEXT, "timeout_ms": _NUMBER},
        required=("command",),
        constant={"type": "exec", "env": {}},
    ),
    "shell": ClientTool(
        field="action",
        whole="commands",
        description="Runs commands in the user's shell, and returns what each writes.",
        properties={"commands": _WORDS, "timeout_ms": _NUMBER, "max_output_length": _NUMBER},
        required=("commands",),
    ),
    "apply_patch": ClientTool(
        field="operation",
        whole="diff",
        description="Creates, updates or deletes a file; `diff` is in the V4A format, and not needed to delete.",
        properties={
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": _TEXT,
            "diff": _TEXT,
        },
        required=("type", "path"),
    ),
}
"""By their types, which are their names too."""


def called_with(tool: ClientTool, written: str) -> dict[str, Any]:
    """Return what a client is to run. What a model writes need not be an object, nor a list where one belongs."""
    try:
        given = msgspec.json.decode(written or "{}")
    except (msgspec.DecodeError, RecursionError):
        given = written
    fields = dict(given) if isinstance(given, dict) else {tool.whole: given}
    if tool.properties[tool.whole] is _WORDS:
        words = fields.get(tool.whole, [])
        fields[tool.whole] = [str(word) for word in (words if isinstance(words, list) else [words])]
    return {**tool.constant, **fields}
