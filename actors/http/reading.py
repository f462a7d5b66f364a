"""Requests' bodies, read in two steps, so that a field that is not known here can be named, not passed over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from pageant.actors.http.outlines import StructOutline, outline_of, tidy
from pageant.protocol.errors import BadRequest

R = TypeVar("R", bound=msgspec.Struct)

OLDER = {f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")}
MESSAGE_MAX = 1000  # characters of a complaint, which may quote what was found


def read(body: bytes, shape: type[R]) -> tuple[R, list[str]]:
    """Return the request in a body, and the places of what is given there and not known here, at every depth.

    Null is what is not given, wherever something need not be given.

    Raises:
        BadRequest: not JSON, or not of this shape; names the field.
    """
    try:
        fields, unknown = msgspec.json.decode(body, type=dict[str, msgspec.Raw]), dict[str, None]()
        given = _tidied(fields, outline_of(shape), unknown)
        if "structured_outputs" in shape.__struct_fields__:
            _refuse_older(unknown)
        try:
            return msgspec.json.decode(body, type=shape), list(unknown)
        except msgspec.ValidationError:  # perhaps because of a null
            rest = {name: msgspec.json.decode(raw) for name, raw in fields.items() if name not in given}
            asked = {name: value for name, value in {**rest, **given}.items() if value is not None}
            return msgspec.convert(asked, shape, str_keys=True), list(unknown)
    except msgspec.ValidationError as error:
        raise _complaint(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


def _tidied(
    fields: dict[str, msgspec.Raw], outline: StructOutline, unknown: dict[str, None]
) -> dict[str, Any]:
    """Return the fields that may hold structs, decoded and tidied; and note what is not known."""
    given: dict[str, Any] = {}
    for name, raw in fields.items():
        if name not in outline.fields:
            if bytes(raw) != b"null":
                unknown[name] = None
        elif (within := outline.fields[name]) is not None:
            given[name] = msgspec.json.decode(raw)
            tidy(given[name], within, name, unknown)
    return given


def _refuse_older(names: Iterable[str]) -> None:
    """Refuse vLLM's older names of structured outputs: passed over, the answer would not be what is asked."""
    for name in names:
        if name in OLDER:
            raise BadRequest(
                f'{name} is an older name; expected structured_outputs with {{"{OLDER[name]}": ...}}', name
            )


def convert(data: dict[str, Any], shape: type[R]) -> R:
    """Return the request in a decoded body.

    Raises:
        BadRequest: see `read`.
    """
    try:
        return msgspec.convert(data, shape, str_keys=True)
    except msgspec.ValidationError as error:
        raise _complaint(error) from None


def _complaint(error: msgspec.ValidationError) -> BadRequest:
    """Return msgspec's error as one about a field."""
    message = str(error)
    return BadRequest(message[:MESSAGE_MAX], _field_of(message))


def _field_of(message: str) -> str | None:
    """Return the field of a body that msgspec complains about, which its errors hold in their text alone."""
    _, found, path = message.rpartition(" - at `$")
    field = path.removeprefix(".").partition("`")[0].partition(".")[0].partition("[")[0]
    if found and field:
        return field
    _, missing, name = message.partition("required field `")
    return name.partition("`")[0] if missing else None


def as_json(value: Any, name: str, bytes_max: int) -> str:
    """Return a value that is passed on as it is, as JSON.

    Raises:
        BadRequest: too long.
    """
    written = msgspec.json.encode(value)
    if len(written) > bytes_max:
        raise BadRequest(f"{name} has {len(written)} bytes; at most {bytes_max} are taken", name)
    return written.decode()
