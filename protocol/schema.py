"""The protocol's schema, for `pageant protocol`, for the handshake, and for actors in other languages."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import msgspec

import pageant.protocol
from pageant.protocol.arrays import ArrayKind
from pageant.protocol.envelope import FRAMES_MAX, Header, Mode
from pageant.protocol.message import Message, all_kinds

ARRAY_DESCRIPTOR = "[frame index or bytes, dtype, shape]: little-endian, C order, in that array frame or here"


def _array_schema(kind: type) -> dict[str, Any]:
    if not isinstance(kind, ArrayKind):
        raise NotImplementedError(f"{kind} has no schema")
    return {
        "type": "array",
        "description": ARRAY_DESCRIPTOR,
        "x-dtype": kind.dtype.name,
        "x-rank": kind.rank,
        "prefixItems": [
            {"type": ["integer", "string"], "contentEncoding": "base64"},
            {"const": kind.wire},
            {"type": "array", "items": {"type": "integer"}},
        ],
    }


def protocol_kinds() -> tuple[type[Message], ...]:
    """Return every message type of `pageant.protocol` itself, sorted by name. Users' own messages are left
    out.
    """
    for module in pkgutil.iter_modules(pageant.protocol.__path__):
        importlib.import_module(f"pageant.protocol.{module.name}")
    return tuple(kind for kind in all_kinds() if kind.__module__.startswith("pageant.protocol."))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the envelope's header and of every message, by kind."""
    kinds = protocol_kinds()
    references, components = msgspec.json.schema_components(
        [Header, *kinds], schema_hook=_array_schema, ref_template="#/components/{name}"
    )
    return {
        "envelope": {
            "frames": ["header", "body", "array*"],
            "frames_max": FRAMES_MAX,
            "encoding": "msgpack",
            "modes": {mode.name: int(mode) for mode in Mode},
            "header": references[0],
        },
        "array": {"descriptor": ARRAY_DESCRIPTOR, "byte_order": "little"},
        "handshake": {
            "hello": "Hello",
            "answers": ["Welcome", "Rejected"],
            "unanswered": ["Knock"],
            "mode": int(Mode.LINK),
        },
        "messages": {kind.__name__: reference for kind, reference in zip(kinds, references[1:], strict=True)},
        "components": components,
    }


def canonical_schema() -> bytes:
    """Return the schema as bytes that are the same in every process."""
    return msgspec.json.encode(schema(), order="deterministic")
