"""Checks of a request's parameters. Each error names the parameter, the value found and the value expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pageant.protocol.errors import BadRequest

TOKEN_ID_MAX = 2**31 - 1
_NUMBERS = (int, float)


def to_builtin(value: Any) -> Any:
    """Convert a value to Python's own types where it is of a subtype, as NumPy's float64 is: only those
    travel.

    Items of tuples, lists and dicts are converted too. A value that is plain already is returned itself.
    """
    kind = type(value)
    if kind in (float, int, str, bool, type(None)):
        return value
    for base in (float, int, str):
        if isinstance(value, base):
            return base(value)
    if kind in (tuple, list):
        return kind(map(to_builtin, value))
    if kind is dict:
        return {to_builtin(key): to_builtin(one) for key, one in value.items()}
    return value


def check_encodable(name: str, value: Any) -> None:
    """Refuse a value that cannot be put into a message: lone surrogates, numbers of more than 64 bits,
    foreign types.
    """
    try:
        msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        raise BadRequest(f"{name} has a lone surrogate, which is not text", name) from None
    except OverflowError:
        raise BadRequest(f"{name} has a whole number of more than 64 bits", name) from None
    except (TypeError, RecursionError) as error:
        raise BadRequest(f"{name} cannot be sent: {error}", name) from None


def check_number(name: str, value: Any, low: float, high: float, *, above_low: bool = False) -> None:
    """Refuse all but numbers from low to high. NaN is refused, and so is low itself with `above_low`."""
    is_number = isinstance(value, _NUMBERS) and not isinstance(value, bool)
    if is_number and low <= value <= high and not (above_low and value == low):
        return
    bounds = f"a number {'above' if above_low else 'from'} {low:g} {'up ' if above_low else ''}to {high:g}"
    raise BadRequest(f"{name} is {value!r}; expected {bounds}", name)


def check_integer(name: str, value: Any, low: int, high: int, parameter: str | None = None) -> None:
    """Refuse all but integers from low to high. The error blames `parameter`, or `name` if there is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(
            f"{name} is {value!r}; expected a whole number from {low} to {high}", parameter or name
        )


def check_token_ids(name: str, ids: Any, most: int) -> None:
    """Refuse all but a tuple of at most `most` token ids of any vocabulary. The error names the bad index."""
    if not isinstance(ids, tuple):
        raise BadRequest(f"{name} is {ids!r}; expected a list", name)
    if len(ids) > most:
        raise BadRequest(f"{name} has {len(ids)} ids; at most {most} are taken", name)
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > TOKEN_ID_MAX):
        for index, token in enumerate(ids):
            check_integer(f"{name}[{index}]", token, 0, TOKEN_ID_MAX)


def check_strings(
    name: str, strings: Any, most: int, length_max: int, form: str = "a list of strings"
) -> None:
    """Refuse all but a tuple of at most `most` strings of 1 to `length_max` characters. The error names the
    bad index.

    Args:
        form: the form in which the strings are given, for the message.
    """
    if not isinstance(strings, tuple) or not all(isinstance(one, str) for one in strings):
        raise BadRequest(f"{name} is {strings!r}; expected {form}", name)
    if len(strings) > most:
        raise BadRequest(f"{name} has {len(strings)} strings; at most {most} are taken", name)
    for index, one in enumerate(strings):
        if not 1 <= len(one) <= length_max:
            raise BadRequest(f"{name}[{index}] has {len(one)} characters; expected 1 to {length_max}", name)


def expected(name: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """Return `did you mean X?` or the known names, for the end of an error message.

    Args:
        elsewhere: other software's names for known things, mapped to the names here.
    """
    import difflib

    names = [elsewhere[name]] if elsewhere and name in elsewhere else sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"expected one of: {', '.join(names)}" if names else "there are none"
