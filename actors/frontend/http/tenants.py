"""Whose share of the service a request takes, where the scheduler's policy shares it out between tenants.

Where keys are asked for, each is a tenant: who calls could call themselves anything. Else it is the user whom a request
names.
"""

from __future__ import annotations

from contextvars import ContextVar

__all__ = ["came_with_key", "tenant_of"]

_LENGTH_MAX = 64  # as OpenAI has it
_of_key: ContextVar[str | None] = ContextVar("tenant", default=None)


def came_with_key(number: int) -> None:
    """The request at hand bears key `number` of those that there are."""
    _of_key.set(f"key {number}")


def tenant_of(user: str | None) -> str:
    """The tenant of the request at hand, which names this user."""
    of_key = _of_key.get()
    return (user or "")[:_LENGTH_MAX] if of_key is None else of_key
