"""Compatibility of two builds' protocols: which fields each knows, and whether they understand each other.

Nodes of two versions serve one topology while it is upgraded. They understand each other if each field that both
know has one type, and each field that only one of them knows has a default there. A receiver leaves out the fields
that it does not know. Message types that only one of them knows are no obstacle.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from pageant.protocol.errors import ProtocolError
from pageant.protocol.message import Message

DESCRIPTION_BYTES_MAX = 4 * 2**20
"""The most bytes of a description that came from another node."""
DIFFERENCES_SHOWN = 4
_WORDS = ("title", "description")
"""Parts of a schema that are for readers alone."""


class FieldShape(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A field as it travels."""

    schema: bytes
    """The JSON schema of its type, in canonical form."""
    has_default: bool = False
    default: Any = None


class StructShape(msgspec.Struct, frozen=True, array_like=True):
    """A struct as it travels."""

    fields: dict[str, FieldShape]
    rest: bytes
    """The schema of everything beside the fields; of enumerations and arrays, the whole schema."""


Shapes = dict[str, StructShape]
_decoder = msgspec.msgpack.Decoder(Shapes)


def shapes_of(components: Mapping[str, Any]) -> Shapes:
    """Return the shapes of the components of a schema, without titles and descriptions."""
    return {name: _shape(_without_words(component)) for name, component in components.items()}


def _shape(component: dict[str, Any]) -> StructShape:
    required = set(component.pop("required", ()))
    fields = {}
    for name, schema in component.pop("properties", {}).items():
        has_default = name not in required
        default = schema.pop("default", None) if isinstance(schema, dict) else None
        fields[name] = FieldShape(_canonical(schema), has_default, default)
    return StructShape(fields, _canonical(component))


def _without_words(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_words(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    # A property may be called `title` too: its schema is a mapping.
    return {
        name: _without_words(value)
        for name, value in schema.items()
        if name not in _WORDS or not isinstance(value, str)
    }


def _canonical(schema: Any) -> bytes:
    return msgspec.json.encode(schema, order="deterministic")


class OwnProtocol:
    """The protocol of a build, as its nodes tell it to others."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self._packed = msgspec.msgpack.encode(shapes, order="deterministic")
        self.fingerprint = hashlib.blake2b(self._packed, digest_size=16).hexdigest()
        """128 bits, as hexadecimal digits, which are the same in every process."""

    def describe(self) -> bytes:
        """Return it for a node of another version."""
        return zlib.compress(self._packed)


@cache
def own_protocol() -> OwnProtocol:
    """Return the protocol of this build."""
    from pageant.protocol.schema import schema

    return OwnProtocol(shapes_of(schema()["components"]))


class PeerProtocol:
    """The protocol of a node of another version.

    Args:
        version: the version that the node names.
        description: its `OwnProtocol.describe()`.

    Raises:
        ProtocolError: that is no description.
    """

    def __init__(self, version: str, description: bytes) -> None:
        self.version = version
        try:
            inflate = zlib.decompressobj()
            self.shapes = _decoder.decode(inflate.decompress(description, DESCRIPTION_BYTES_MAX))
        except (zlib.error, msgspec.DecodeError, RecursionError) as error:
            raise ProtocolError(f"the description of a protocol cannot be read: {error}") from None

    def differences(self, own: OwnProtocol) -> list[str]:
        """Return the places at which it and this node's protocol cannot understand each other."""
        found = []
        for name in sorted(own.shapes.keys() & self.shapes.keys()):
            found += _differences(name, own.shapes[name], self.shapes[name])
        return found

    def is_default(self, struct: str, field: str, value: Any) -> bool:
        """Tell whether a value is what that field has there by default."""
        shape = self.shapes.get(struct)
        known = shape.fields.get(field) if shape is not None else None
        return known is not None and known.has_default and bool(known.default == value)


def _differences(name: str, own: StructShape, other: StructShape) -> list[str]:
    if own.rest != other.rest:
        return [f"{name} differs"]
    found = []
    for field in sorted(own.fields.keys() | other.fields.keys()):
        here, there = own.fields.get(field), other.fields.get(field)
        if here is not None and there is not None:
            if here.schema != there.schema:
                found.append(f"{name}.{field} has another type")
        elif not (one := here or there) or not one.has_default:
            found.append(f"{name}.{field} is required, and known to one of them alone")
    return found


def summary(differences: list[str]) -> str:
    """Return the first differences for a message to people."""
    more = len(differences) - DIFFERENCES_SHOWN
    return "; ".join(differences[:DIFFERENCES_SHOWN]) + (f"; and {more} more" if more > 0 else "")


LeftOut = Callable[[str, str, Any], None]
"""Called with the struct, the name and the value of each field that is left out."""


def without_unknown(kind: type[Message], raw: Any, left_out: LeftOut) -> Any:
    """Return the plain values of a message of another version without the fields that are not known here."""
    return _known(_type_of(kind), raw, left_out)


@cache
def _type_of(kind: type[Message]) -> inspect.Type:
    return inspect.type_info(kind)


def _known(kind: Any, raw: Any, left_out: LeftOut) -> Any:
    if isinstance(kind, inspect.UnionType):
        kind = _chosen(kind, raw)
    if isinstance(raw, dict):
        if isinstance(kind, inspect.StructType):
            return _known_fields(kind, raw, left_out)
        if isinstance(kind, inspect.DictType):
            return {key: _known(kind.value_type, value, left_out) for key, value in raw.items()}
    elif isinstance(raw, list):
        if isinstance(kind, inspect.TupleType):
            types = kind.item_types
            if len(types) == len(raw):
                return [_known(one, value, left_out) for one, value in zip(types, raw, strict=True)]
        elif isinstance(kind, inspect.CollectionType):
            return [_known(kind.item_type, value, left_out) for value in raw]
    return raw


def _chosen(union: inspect.UnionType, raw: Any) -> Any:
    """Return the member of a union that a value may be of: by its tag, if there are several structs."""
    if isinstance(raw, list):
        return next(
            (one for one in union.types if isinstance(one, inspect.CollectionType | inspect.TupleType)), None
        )
    if not isinstance(raw, dict):
        return None
    structs = [one for one in union.types if isinstance(one, inspect.StructType)]
    tagged = [one for one in structs if one.tag_field and raw.get(one.tag_field) == one.tag]
    mappings = [one for one in union.types if isinstance(one, inspect.DictType)]
    return next(iter([*tagged, *structs, *mappings]), None)


def _known_fields(kind: inspect.StructType, raw: dict[Any, Any], left_out: LeftOut) -> dict[Any, Any]:
    types = {field.encode_name: field.type for field in kind.fields}
    found = {}
    for name, value in raw.items():
        if name in types:
            found[name] = _known(types[name], value, left_out)
        elif name == kind.tag_field:
            found[name] = value
        else:
            left_out(kind.cls.__name__, str(name), value)
    return found
