"""Removal of text from messages: token ids, numbers and the runtime's own names stay; all that people wrote
goes.

Redaction is an allow list. A string stays only if its type lists its possible values, or its field is in
`NAMES`. A field that is new to the protocol therefore loses its text until it is added here, and kinds of a
user's own are not kept at all. Names that matter for sharing (a tenant, a salt, an adapter, weights) are replaced by
aliases, equal where the names were equal. Embeddings of prompts are removed, since a text can be found from them;
their placeholder tokens stay. So are results of pooling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, cast, get_args, get_origin

import msgspec

from pageant.protocol.message import Message

# Fields whose strings are the runtime's own names.
NAMES = frozenset({"request_id", "request_ids", "frontend", "stream", "device", "dtype", "tier"})
ALIASES = frozenset(
    {"tenant", "cache_salt", "salt", "extra_keys", "adapter", "version", "weight_version"}  # of weights
)
# Kinds that consist of text alone.
TEXT_KINDS = frozenset({"Tokenize", "TokenizeChat", "Detokenize", "CompileGrammar", "GuideStep", "Spans"})
# Values that replace a field where "" would mean something else.
EMPTY: Mapping[str, Any] = {
    **{"stop": (), "bad_words": (), "structured_outputs": None, "extra_args": None, "trace": None},
}
# Fields from whose numbers a text could be found.
TELLING: Mapping[str, Any] = {
    "prompt_embeds": None,
    "embedded": None,
    "embedded_tokens": (),
    "embed_names": None,
    "pooled": None,
}


class Redaction:
    """Removes the text from messages.

    Args:
        key: the key of the aliases. Without it, nobody can find the names behind aliases by trying.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def redact(self, message: Message) -> Message | None:
        """Return the message without text; None if nothing else is in it."""
        kind = type(message)
        if kind.__name__ in TEXT_KINDS or not kind.__module__.startswith("pageant.protocol."):
            return None
        stripped: Message = self._struct(message)
        return stripped

    def _struct(self, value: Any) -> Any:
        changed, kind = {}, cast("Any", type(value))
        for field in text_fields(kind):
            found = getattr(value, field)
            if found is None or field in NAMES or (isinstance(found, str) and not found):
                continue
            if field in TELLING:
                changed[field] = TELLING[field]
                continue
            if field in ALIASES:
                changed[field] = self._alias(found)
            else:
                changed[field] = EMPTY[field] if field in EMPTY else self._without(found)
        return msgspec.structs.replace(value, **changed) if changed else value

    def _without(self, value: Any) -> Any:
        if isinstance(value, str):
            return ""
        if isinstance(value, msgspec.Struct):
            return self._struct(value)
        if isinstance(value, tuple):
            return tuple(map(self._without, value))
        if isinstance(value, Mapping):
            return {self._without(key): self._without(one) for key, one in value.items()}
        return value

    def _alias(self, name: Any) -> Any:
        if isinstance(name, tuple):
            return tuple(map(self._alias, name))
        if isinstance(name, msgspec.Struct):
            return self._struct(name)
        return hashlib.blake2b(name.encode(), key=self._key, digest_size=6).hexdigest()


@cache
def text_fields(kind: type[Any]) -> tuple[str, ...]:
    """Return the fields of a Struct that may hold text, at any depth."""
    return tuple(
        field.name
        for field in msgspec.structs.fields(kind)
        if field.name in TELLING or _may_hold_text(field.type, ())
    )


def _may_hold_text(hint: Any, within: tuple[Any, ...]) -> bool:
    if hint is str or hint is Any or hint is object:
        return True
    if get_origin(hint) is Literal or hint in within:
        return False
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return any(
            one.name in TELLING or _may_hold_text(one.type, (*within, hint))
            for one in msgspec.structs.fields(hint)
        )
    return any(_may_hold_text(part, within) for part in get_args(hint))
