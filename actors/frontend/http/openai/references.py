"""References to items that earlier responses put out, for clients that leave their items in the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from pageant.actors.frontend.http.errors import NotFound
from pageant.actors.frontend.http.openai.response_items import Item, is_reference
from pageant.protocol.fronting import UsedResponse

__all__ = ["resolved"]


class _Output(msgspec.Struct):
    """The items of a stored response; those with fields that are not known here have them passed over."""

    output: list[msgspec.Raw] = msgspec.field(default_factory=list)


class _Named(msgspec.Struct):
    id: str = ""


async def resolved(items: Sequence[Item], show: Callable[[str], Awaitable[UsedResponse]]) -> tuple[Item, ...]:
    """Return the items, with those that they refer to instead of references.

    Args:
        show: returns the stored response of an id; raises `NotFound`.

    Raises:
        NotFound: no stored response put out such an item.
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
                f"{place} refers to {name!r:.200}, which no response that is stored here has put out",
                "input",
                "item_not_found",
            )
        given.append(found[response][name])
    return tuple(given)


def _items_of(used: UsedResponse) -> dict[str, Item]:
    """Return a stored response's items by their ids."""
    output = msgspec.json.decode(used.response or "{}", type=_Output).output
    return {msgspec.json.decode(one, type=_Named).id: msgspec.json.decode(one, type=Item) for one in output}
