"""Items of `/v1/responses`' input: messages, what earlier responses put out, and what came of their calls."""

from __future__ import annotations

from typing import Any

import msgspec

from pageant.actors.http.chat.turns import (
    IMAGE_PARTS,
    CalledCustom,
    CalledFunction,
    CalledTool,
    ContentPart,
    Turn,
    check_medium,
    merged,
)
from pageant.actors.http.openai.client_tools import CLIENT_TOOLS
from pageant.actors.http.openai.opaque import opened
from pageant.actors.http.openai.response_tools import qualified
from pageant.actors.http.reading import convert
from pageant.protocol.errors import BadRequest

__all__ = ["Item", "is_reference"]

_CALL = "_call"
_KINDS = ("message", "reasoning", "item_reference")


class Item(msgspec.Struct, kw_only=True):
    """An item of the input. Kinds that no model can be told of, such as a search at OpenAI's, are passed over."""

    type: str | None = None
    role: str | None = None
    content: str | tuple[str | ContentPart, ...] | None = None
    id: str | None = None
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: Any = None
    output: Any = None
    action: Any = None
    operation: Any = None
    summary: Any = None
    encrypted_content: str | None = None

    @staticmethod
    def is_read(given: dict[str, Any]) -> bool:
        """Tell whether its fields are read. Other types may have other values under the same names."""
        kind = given.get("type")
        return kind in (*_KINDS, None) or (isinstance(kind, str) and kind.endswith((_CALL, "_output")))

    @property
    def kind(self) -> str:
        """Return its type. An item without one is a message if it has a role, and else a reference to another
        item.
        """
        return self.type or ("message" if self.role is not None or self.id is None else "item_reference")

    def turn(self, place: str) -> Turn | None:
        """Return the same as chats have it; None where it says nothing to a model.

        Raises:
            BadRequest: a part of it is missing, is an image that cannot be taken, or is a sound or a file.
        """
        kind = self.kind
        if kind == "message":
            self._need(place, "role")
            return Turn(role=self.role or "", content=_content(self.content, f"{place}.content"))
        if kind == "reasoning":
            return Turn(role="assistant", reasoning_content=self._thoughts(place))
        if kind.endswith("_output"):
            return self._result(kind, place)
        if kind.endswith(_CALL) and (called := self._called(kind, place)) is not None:
            return Turn(role="assistant", tool_calls=(called,))
        return None

    def result_within(self, place: str) -> Turn | None:
        """Return what came of a call, where the item has both, as that of a server for tools has.

        Raises:
            BadRequest: it is an image that cannot be taken, or is a sound or a file.
        """
        if self.kind != "mcp_call" or self.name is None or self.output is None:
            return None
        return self._result(self.kind, place)

    def _called(self, kind: str, place: str) -> CalledTool | None:
        """Return the call of a tool that the client has; None of one that only OpenAI has."""
        name, call_id = self.name, self.call_id or self.id or ""
        if (client := CLIENT_TOOLS.get(kind.removesuffix(_CALL))) is not None:
            arguments = client.arguments(getattr(self, client.field))
            return CalledTool(
                id=call_id, function=CalledFunction(name=kind.removesuffix(_CALL), arguments=arguments)
            )
        if kind in ("function_call", "custom_tool_call"):
            self._need(place, "name")
        if name is None:
            return None
        name = qualified(self.namespace, name)
        if kind == "custom_tool_call":
            custom = CalledCustom(name=name, input=_written(self.input))
            return CalledTool(id=call_id, type="custom", custom=custom)
        return CalledTool(
            id=call_id, function=CalledFunction(name=name, arguments=_written(self.arguments) or "{}")
        )

    def _result(self, kind: str, place: str) -> Turn | None:
        call_id = self.call_id or self.id
        if call_id is None:
            if kind == "function_call_output":
                self._need(place, "call_id")
            return None
        output = self.output
        if isinstance(output, dict) and isinstance(output.get("type"), str):
            output = [output]
        return Turn(role="tool", tool_call_id=call_id, content=_content(output, f"{place}.output"))

    def _thoughts(self, place: str) -> str:
        if not self.content and (thoughts := opened(self.encrypted_content)):
            return thoughts
        return _text(self.content or self.summary, f"{place}.content")

    def _need(self, place: str, name: str) -> None:
        if getattr(self, name) is None:
            raise BadRequest(f"{place} has no {name}; expected one in a {self.kind}", "input")


def is_reference(item: Item) -> bool:
    """Return whether an item stands for one that a stored response put out."""
    return item.kind == "item_reference"


def _written(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _text(content: Any, place: str) -> str:
    """Return the text of parts; see `_content`.

    Raises:
        BadRequest: a part is an image, a sound or a file, or lacks its text.
    """
    if not isinstance(content, list | tuple):
        return _written(content)
    return "".join(_said(part, f"{place}[{index}]") for index, part in enumerate(content))


def _content(content: Any, place: str) -> str | tuple[str | ContentPart, ...]:
    """Return parts as a turn has them. Some were checked by their shape; other data is written as JSON.

    Raises:
        BadRequest: a part is an image that cannot be taken, is a sound or a file, or lacks its text.
    """
    if not isinstance(content, list | tuple):
        return _written(content)
    found: list[str | ContentPart] = []
    for index, part in enumerate(content):
        where = f"{place}[{index}]"
        if isinstance(part, dict) and part.get("type") in IMAGE_PARTS:
            part = convert(part, ContentPart)
        if isinstance(part, ContentPart) and part.is_image:
            part.seen(where, "input")  # now, while its place is known; turns are kept as they came
            found.append(part)
        else:
            found.append(_said(part, where))
    return merged(found)


def _said(part: Any, where: str) -> str:
    """Return the text of a part."""
    if isinstance(part, ContentPart):
        return part.said(where, "input") or ""
    if isinstance(part, dict) and isinstance(part.get("type"), str):
        check_medium(part["type"], where, "input")
        text = part.get("text")
        return text if isinstance(text, str) else ""
    return _written(part)
