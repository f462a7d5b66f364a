"""Base classes of parameters that users write by hand: an unknown one is refused with the nearest known name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pageant.protocol.checks import expected
from pageant.protocol.errors import BadRequest


class _Named(msgspec.StructMeta):
    if not TYPE_CHECKING:  # to a type checker, the fields are the signature

        def __call__(cls, *values: Any, **fields: Any) -> Any:
            try:
                return super().__call__(*values, **fields)
            except TypeError:
                for name in fields:
                    if name not in cls.__struct_fields__:
                        kind, known = cls.__name__, expected(name, cls.__struct_fields__)
                        raise BadRequest(f"{name} is no parameter of {kind}; {known}", name) from None
                raise


class MutableParameters(msgspec.Struct, metaclass=_Named):
    """Base of parameters that their owner may change."""


class Parameters(msgspec.Struct, metaclass=_Named, frozen=True, kw_only=True):
    """Base of frozen parameters.

    Raises:
        BadRequest: the constructor was given an unknown parameter.
    """
