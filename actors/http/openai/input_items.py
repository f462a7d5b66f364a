"""`/v1/responses/ID/input_items`: the items that a stored response was made from, page by page.

They are kept as clients read them: each has an id, a type, and its content in parts. Those of a response that follows
another begin with all that the other was made from, and what it put out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from pageant.actors.http.openai.response_items import Item
from pageant.protocol.errors import BadRequest

__all__ = ["LIMIT", "LIMIT_MAX", "InputItems", "Order", "input_items", "page_of"]

LIMIT, LIMIT_MAX = 20, 100  # items of a page
Order = Literal["asc", "desc"]
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}

StoredItem = dict[str, Any]


class InputItems(msgspec.Struct, kw_only=True):
    """A page of items. `first_id` and `last_id` are None where it has none."""

    data: list[StoredItem]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False
    object: Literal["list"] = "list"


def input_items(
    given: str | Sequence[Item], name: str, before: Sequence[StoredItem] = ()
) -> list[StoredItem]:
    """Return the items that a response was made from, in order, each under an id that no other has.

    Args:
        given: its input, references resolved.
        name: the response's id.
        before: the items before them: of the response that it follows.
    """
    items = [Item(role="user", content=given)] if isinstance(given, str) else given
    found, taken = list(before), {one.get("id") for one in before}
    for index, item in enumerate(items):
        shown = _shown(item)
        if item.id is None or item.id in taken:
            prefix = _PREFIXES.get(item.kind, "item")
            shown["id"] = f"{prefix}_{name.removeprefix('resp-')}-i{index}"
        taken.add(shown["id"])
        found.append(shown)
    return found


def page_of(items: Sequence[StoredItem], after: str | None, limit: int, order: Order) -> InputItems:
    """Return a page of items.

    Args:
        after: the id of the last item before the page; None is its beginning.
        limit: the most items that it has.
        order: the oldest first, or the latest.

    Raises:
        BadRequest: `limit` is out of range, or there is no item `after`.
    """
    if not 1 <= limit <= LIMIT_MAX:
        raise BadRequest(f"limit is {limit}; expected 1 to {LIMIT_MAX}", "limit")
    ordered = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise BadRequest(f"after is {after!r:.200}; expected the id of an item of this response", "after")
        start = ids.index(after) + 1
    data = ordered[start : start + limit]
    return InputItems(
        data=data,
        first_id=data[0]["id"] if data else None,
        last_id=data[-1]["id"] if data else None,
        has_more=start + limit < len(ordered),
    )


def _shown(item: Item) -> StoredItem:
    """Return an item as clients read it: without what was not given, and with its content in parts."""
    shown = _given(item) | {"type": item.kind}
    if item.kind == "message":
        written = "output_text" if item.role == "assistant" else "input_text"
        content = item.content
        parts = (content,) if isinstance(content, str) else content or ()
        shown["content"] = [_part(part, written) for part in parts]
        shown.setdefault("status", "completed")
    return shown


def _part(part: Any, written: str) -> dict[str, Any]:
    """Return a part of a message; `written` is the type of its texts."""
    shown: dict[str, Any] = {"type": written, "text": part} if isinstance(part, str) else _given(part)
    if shown["type"] == "text":
        shown["type"] = written
    if shown["type"] == "output_text":
        shown.setdefault("annotations", [])
    return shown


def _given(value: Any) -> dict[str, Any]:
    fields = msgspec.to_builtins(value)
    return {
        name: [_without_none(one) for one in field] if isinstance(field, list | tuple) else field
        for name, field in fields.items()
        if field is not None
    }


def _without_none(value: Any) -> Any:
    return {key: one for key, one in value.items() if one is not None} if isinstance(value, dict) else value
