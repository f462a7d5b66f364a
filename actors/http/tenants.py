"""Callers of an HTTP server: which tenant a request is of, and what that tenant may see.

Where keys are asked for, each key is a tenant: who calls could call themselves anything. What a tenant makes (stored
responses, running requests and their ids, adapters loaded while the server runs) is found under that tenant's key
alone. An operator sees everything. Where no keys are asked for, or only one, there is one caller, who is the operator.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

__all__ = ["EVERYBODY", "CacheScope", "Caller", "Keys", "caller", "came_from", "tenant_of"]

CacheScope = Literal["all", "tenant"]

_USER_LENGTH_MAX = 64  # as OpenAI has it


@dataclass(frozen=True)
class Caller:
    """The sender of the present request.

    Attributes:
        tenant: the name of the key; None where no keys are asked for.
        is_operator: sees and ends what any tenant made.
    """

    tenant: str | None = None
    is_operator: bool = False

    def owns(self, owner: str | None) -> bool:
        """Return whether something made by `owner` may be seen, changed and ended by this caller."""
        return self.is_operator or owner == self.tenant


EVERYBODY = Caller(is_operator=True)
"""The caller of a server that asks for no key."""

_caller: ContextVar[Caller] = ContextVar("caller", default=EVERYBODY)


class Keys:
    """The API keys of a server, and the caller that each stands for.

    Args:
        tenants: keys of tenants.
        operators: keys of operators.
    """

    def __init__(self, tenants: Sequence[str], operators: Sequence[str] = ()) -> None:
        is_alone = len({*tenants, *operators}) == 1
        callers = [Caller(f"key {number}", is_alone) for number in range(len(tenants))]
        callers += [Caller(f"operator {number}", is_operator=True) for number in range(len(operators))]
        self._callers = list(zip((key.encode() for key in (*tenants, *operators)), callers, strict=True))

    def __bool__(self) -> bool:
        return bool(self._callers)

    def find(self, given: str) -> Caller | None:
        """Return the caller who gave a key, or None. Every key is compared, in constant time."""
        text = given.encode("utf-8", "replace")
        found = [one for key, one in self._callers if hmac.compare_digest(text, key)]
        return found[0] if found else None

    def cache_scope(self, wanted: CacheScope | None) -> CacheScope:
        """Return who shares cached prefixes: as the topology says, or else tenants apart where there are several."""
        return wanted or ("tenant" if len(self._callers) > 1 else "all")


def came_from(one: Caller) -> None:
    """Note who sent the request that the running task answers."""
    _caller.set(one)


def caller() -> Caller:
    """Return who sent the request that the running task answers."""
    return _caller.get()


def tenant_of(user: str | None) -> str:
    """Return the tenant whose share of the service a request takes: its key's, or else the user whom it names."""
    tenant = caller().tenant
    return (user or "")[:_USER_LENGTH_MAX] if tenant is None else tenant
