"""A replica as the router knows it: who is up, its latest load, and the requests that are on their way to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from pageant.actors.router.rebalancing import MemoryUse
from pageant.protocol.routing import Load

RECENT_SECONDS = 10.0
REQUEST_TOKENS = 16
"""Tokens that a request on its way counts for, beside those that are to be computed: it is going to say something."""
TICKET_SECONDS = 2.0
"""Time for which a replica is charged with a request that its scheduler does not speak of: its frontend died."""


class Charge(NamedTuple):
    """The work of a request that is on its way to a replica."""

    tokens: int
    at: float
    """Seconds at which it was routed."""


@dataclass(eq=False)
class Replica:
    """Replica of the model, with its work."""

    name: str
    bit: int
    """Its place in bit masks."""
    incarnation: int = 0
    """The life of its scheduler that is up or was the last to be; loads of others are ignored."""
    is_up: bool = False
    """Its scheduler is up."""
    others_up: set[str] = field(default_factory=set)
    """The roles of its other actors that are up."""
    is_draining: bool = False
    only_prefills: bool = False
    """It is for prompts: outputs go on elsewhere."""
    load: Load | None = None
    """The latest one of that life."""
    charges: dict[int, Charge] = field(default_factory=dict)
    """Requests that `load` does not contain, by ticket, the eldest first."""
    charged_tokens: int = 0
    """The sum of `charges`."""
    requests: int = 0
    recent: float = 0.0
    """Tokens of the requests that were sent there; each counts less by e in `RECENT_SECONDS`."""
    recent_at: float = 0.0
    """Seconds at which `recent` was so."""

    def charge(self, ticket: int, tokens: int, now: float) -> None:
        """Add the work of a request, at `now` seconds."""
        tokens += REQUEST_TOKENS
        self.charges[ticket] = Charge(tokens, now)
        self.charged_tokens += tokens
        self.requests += 1
        self.recent, self.recent_at = self.recent_tokens(now) + tokens, now

    def recent_tokens(self, now: float) -> float:
        """Return the tokens that were sent there lately, as of `now` seconds."""
        return self.recent * math.exp((self.recent_at - now) / RECENT_SECONDS)

    def settle(self, ticket: int) -> None:
        """Take a charge away: the load contains it, or it never came."""
        charge = self.charges.pop(ticket, None)
        if charge is not None:
            self.charged_tokens -= charge.tokens

    def expire(self, now: float) -> bool:
        """Take away charges that are too old at `now` seconds. Return whether there were any."""
        found = False
        while self.charges:
            ticket, charge = next(iter(self.charges.items()))
            if charge.at + TICKET_SECONDS > now:
                break
            self.settle(ticket)
            found = True
        return found

    def forget_work(self) -> None:
        """Start over with another life of the scheduler."""
        self.load, self.charges, self.charged_tokens = None, {}, 0

    @property
    def waiting_tokens(self) -> int:
        """Return the tokens that are to be computed there, with what is on its way."""
        return self.charged_tokens + (0 if self.load is None else self.load.waiting_tokens)

    @property
    def memory_use(self) -> MemoryUse:
        """Return the KV memory there, and how much is needed with what is on its way."""
        if self.load is None or not self.load.memory_tokens:
            return MemoryUse(self.name, 0.0, 0)
        share = self.load.memory + self.charged_tokens / self.load.memory_tokens
        return MemoryUse(self.name, share, self.load.memory_tokens)

    @property
    def waiting(self) -> int:
        """Return the requests that hold no memory there, with what is on its way."""
        return len(self.charges) + (0 if self.load is None else self.load.waiting)

    @property
    def running(self) -> int:
        """Return the requests that hold memory there."""
        return 0 if self.load is None else self.load.running
