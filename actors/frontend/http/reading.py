"""Requests' bodies, read in two steps, so that a field that is not known here can be named, not passed over."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from pageant.protocol.errors import BadRequest

R = TypeVar("R", bound=msgspec.Struct)

OLDER = {f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")}
MESSAGE_MAX = 1000  # characters of a complaint, which may quote what was found


def read(body: bytes, shape: type[R]) -> tuple[R, list[str]]:
    """The request in a body, and the names of its fields that are not known here.

    Raises:
        BadRequest: not JSON, or not of this shape; names the field.
    """
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        unknown = [name for name in fields if name not in shape.__struct_fields__]
        if "structured_outputs" in shape.__struct_fields__:
            _refuse_older(name for name in unknown if bytes(fields[name]) != b"null")
        return msgspec.json.decode(body, type=shape), unknown
    except msgspec.ValidationError as error:
        raise _complaint(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


def _refuse_older(names: Iterable[str]) -> None:
    """vLLM's older names of structured outputs are not passed over: the answer would not be what is asked."""
    for name in names:
        if name in OLDER:
            raise BadRequest(
                f'{name} is an older name; expected structured_outputs with {{"{OLDER[name]}": ...}}', name
            )


def convert(data: dict[str, Any], shape: type[R]) -> R:
    """The request in a decoded body.

    Raises:
        BadRequest: see `read`.
    """
    try:
        return msgspec.convert(data, shape, str_keys=True)
    except msgspec.ValidationError as error:
        raise _complaint(error) from None


def _complaint(error: msgspec.ValidationError) -> BadRequest:
    """What msgspec says, about which field."""
    message = str(error)
    found = re.search(r"`\$\.?([A-Za-z_]+)", message) or re.search(r"required field `(\w+)`", message)
    return BadRequest(message[:MESSAGE_MAX], found[1] if found else None)


def as_json(value: Any, name: str, bytes_max: int) -> str:
    """A value that is passed on as it is, as JSON.

    Raises:
        BadRequest: too long.
    """
    written = msgspec.json.encode(value)
    if len(written) > bytes_max:
        raise BadRequest(f"{name} has {len(written)} bytes; at most {bytes_max} are taken", name)
    return written.decode()
