"""Outlines of requests' shapes, by which the fields of a body that are not known are named, whatever their depth.

The shapes themselves pass unknown fields over, and refuse a null where something may be left out but not be null; to
clients null is what is not given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

__all__ = ["Outline", "outline_of", "tidy"]


@dataclass(eq=False)
class Outline:
    """A type that may hold structs.

    Attributes:
        structs: the outlines of these, by their tags; None is one without a tag.
        items: of a list, or of an object's values.
    """

    structs: dict[Any, StructOutline] = field(default_factory=dict)
    items: Outline | None = None

    def of(self, value: dict[str, Any]) -> StructOutline | None:
        """Return the outline of the struct that an object is; None where it is none."""
        for tag, struct in self.structs.items():
            if tag is None or value.get(struct.tag_field or "type") == tag:
                return struct
        return None


@dataclass(eq=False)
class StructOutline:
    """A struct's fields: an outline of each, where it may hold structs; and those that may be left out, not null.

    Attributes:
        is_read: tells of an object whether anything but its type is read; None is always. It is the shape's own
            `is_read`, of shapes that pass over objects of types that are not known.
    """

    tag_field: str | None
    is_closed: bool
    is_read: Callable[[dict[str, Any]], bool] | None = None
    fields: dict[str, Outline | None] = field(default_factory=dict)
    not_null: set[str] = field(default_factory=set)


@cache
def outline_of(shape: type[msgspec.Struct]) -> StructOutline:
    """Return the outline of a request's shape."""
    info = inspect.type_info(shape)
    assert isinstance(info, inspect.StructType)
    return _of_struct(info, {})


def tidy(value: Any, outline: Outline | None, place: str, unknown: dict[str, None]) -> None:
    """Note the unknown fields of decoded JSON, and remove from it the nulls that stand for what is not given.

    Args:
        value: is changed.
        unknown: the places so far, in the order in which they are found.
    """
    if outline is None:
        return
    if isinstance(value, list):
        for item in value:
            tidy(item, outline.items, f"{place}[]", unknown)
    elif isinstance(value, dict):
        struct = outline.of(value)
        if struct is not None:
            tidy_struct(value, struct, f"{place}.", unknown)
        else:
            for item in value.values():
                tidy(item, outline.items, f"{place}{{}}", unknown)


def tidy_struct(value: dict[str, Any], struct: StructOutline, place: str, unknown: dict[str, None]) -> None:
    """Do the same with an object that is a struct; `place` stands before the names of its fields."""
    if struct.is_read is not None and not struct.is_read(value):
        for name in [name for name in value if name != "type"]:
            del value[name]
    for name in list(value):
        if name not in struct.fields:
            if name == struct.tag_field:
                continue
            if value[name] is None:
                del value[name]
            elif not struct.is_closed:
                unknown[f"{place}{name}"[:128]] = None
        elif value[name] is None:
            if name in struct.not_null:
                del value[name]
        else:
            tidy(value[name], struct.fields[name], f"{place}{name}", unknown)


def _of_struct(info: inspect.StructType, known: dict[type, StructOutline]) -> StructOutline:
    if info.cls in known:  # a struct may hold others of its own kind
        return known[info.cls]
    outline = known[info.cls] = StructOutline(
        info.tag_field, info.forbid_unknown_fields, getattr(info.cls, "is_read", None)
    )
    for one in info.fields:
        outline.fields[one.encode_name] = _of_type(one.type, known)
        if not one.required and not _takes_null(one.type):
            outline.not_null.add(one.encode_name)
    return outline


def _of_type(info: inspect.Type, known: dict[type, StructOutline]) -> Outline | None:
    outline = Outline()
    for one in info.types if isinstance(info, inspect.UnionType) else (info,):
        if isinstance(one, inspect.StructType):
            outline.structs[one.tag] = _of_struct(one, known)
        elif isinstance(one, inspect.ListType | inspect.VarTupleType):
            outline.items = outline.items or _of_type(one.item_type, known)
        elif isinstance(one, inspect.DictType):
            outline.items = outline.items or _of_type(one.value_type, known)
    return outline if outline.structs or outline.items is not None else None


def _takes_null(info: inspect.Type) -> bool:
    types = info.types if isinstance(info, inspect.UnionType) else (info,)
    return any(isinstance(one, inspect.NoneType | inspect.AnyType) for one in types)
