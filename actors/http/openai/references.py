"""References to items of earlier responses, for clients that leave their items in the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from pageant.actors.http.errors import NotFound
from pageant.actors.http.openai.response_items import Item, is_reference
from pageant.protocol.fronting import UsedResponse

__all__ = ["output_of", "resolved"]


class _Output(msgspec.Struct):
    output: list[dict[str, Any]] = msgspec.field(default_factory=list)


async def resolved(items: Sequence[Item], show: Callable[[str], Awaitable[UsedResponse]]) -> tuple[Item, ...]:
    """Return the items, with those that they refer to instead of references.

    Args:
        show: returns the stored response of an id; raises `NotFound`.

    Raises:
        NotFound: no stored response has such an item.
    """
    found: dict[str, dict[str, Item]] = {}
    given: list[Item] = []
    for index, item in enumerate(items):
        if not is_reference(item):
            given.append(item)
            continue
        name, place = item.id or "", f"input[{index}]"
        response = "resp-" + name.partition("_")[2].rpartition("-")[0]
        if response not in found:
            try:
                found[response] = _items_of(await show(response))
            except NotFound:
                found[response] = {}
        if name not in found[response]:
            raise NotFound(
                f"{place} refers to {name!r:.200}, which no response that is stored here has",
                "input",
                "item_not_found",
            )
        given.append(found[response][name])
    return tuple(given)


def output_of(used: UsedResponse) -> list[dict[str, Any]]:
    """Return the items that a stored response put out."""
    return msgspec.json.decode(used.response or "{}", type=_Output).output


def _items_of(used: UsedResponse) -> dict[str, Item]:
    """Return the items that a stored response was made from, and that it put out, by their ids.

    Fields that are not known here are passed over.
    """
    items = [*msgspec.json.decode(used.items), *output_of(used)]
    return {one.get("id", ""): msgspec.convert(one, Item) for one in items}
