"""Checks of a request's parameters: each names the parameter, what was found and what is expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pageant.protocol.errors import BadRequest

TOKEN_ID_MAX = 2**31 - 1
_NUMBERS = (int, float)


def plain(value: Any) -> Any:
    """The same in Python's own types, where it is of types made from those, as NumPy's float64 is: only they travel.
    What tuples, lists and dicts hold is looked at, too."""
    kind = type(value)
    if kind in (float, int, str, bool, type(None)):
        return value
    for base in (float, int, str):
        if isinstance(value, base):
            return base(value)
    if kind in (tuple, list):
        return kind(map(plain, value))
    if kind is dict:
        return {plain(key): plain(one) for key, one in value.items()}
    return value


def check_travels(name: str, value: Any) -> None:
    """Refuses what cannot be put into a message: half characters, numbers of more than 64 bits, foreign types."""
    try:
        msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        raise BadRequest(f"{name} has a lone surrogate, which is not text", name) from None
    except OverflowError:
        raise BadRequest(f"{name} has a whole number of more than 64 bits", name) from None
    except (TypeError, RecursionError) as error:
        raise BadRequest(f"{name} cannot be sent: {error}", name) from None


def check_number(name: str, value: Any, low: float, high: float, *, above_low: bool = False) -> None:
    """Refuses all but numbers from low to high, and so NaN; with `above_low`, low itself too."""
    is_number = isinstance(value, _NUMBERS) and not isinstance(value, bool)
    if is_number and low <= value <= high and not (above_low and value == low):
        return
    bounds = f"a number {'above' if above_low else 'from'} {low:g} {'up ' if above_low else ''}to {high:g}"
    raise BadRequest(f"{name} is {value!r}; expected {bounds}", name)


def check_integer(name: str, value: Any, low: int, high: int, parameter: str | None = None) -> None:
    """Refuses all but whole numbers from low to high. `parameter` is the one to blame, if not `name`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(
            f"{name} is {value!r}; expected a whole number from {low} to {high}", parameter or name
        )


def check_token_ids(name: str, ids: Any, most: int) -> None:
    """Refuses all but a tuple of at most so many token ids, of whatever vocabulary; names the bad index."""
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
    """Refuses all but a tuple of at most so many strings, of 1 to `length_max` characters; names the bad index.

    Args:
        form: that they are given in, for the message.
    """
    if not isinstance(strings, tuple) or not all(isinstance(one, str) for one in strings):
        raise BadRequest(f"{name} is {strings!r}; expected {form}", name)
    if len(strings) > most:
        raise BadRequest(f"{name} has {len(strings)} strings; at most {most} are taken", name)
    for index, one in enumerate(strings):
        if not 1 <= len(one) <= length_max:
            raise BadRequest(f"{name}[{index}] has {len(one)} characters; expected 1 to {length_max}", name)


def expected(name: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """`did you mean X?` or what there is, for the end of an error message.

    Args:
        elsewhere: what others call some of what is known, or what is like it, and its name here.
    """
    import difflib

    names = [elsewhere[name]] if elsewhere and name in elsewhere else sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"expected one of: {', '.join(names)}" if names else "there are none"
