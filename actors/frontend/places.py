"""Places where a frontend's requests are computed: a model's only engine, or each of its replicas."""

from __future__ import annotations

from pageant.actors.runtime.address import is_follower, role_of
from pageant.actors.runtime.streams import Incoming
from pageant.protocol.replicas import DRAINING, MOVES, ROLE
from pageant.protocol.stepping import MAX_MODEL_LEN
from pageant.protocol.supervision import REMOVED, ActorChanged, ActorDown, ActorUp, Facts

RUNNING_CAST = ("scheduler", "blocks", "executor", "detokenizer")  # of a request that is submitted


class Place:
    """The actors of one place, as far as they are up, and what a frontend has there.

    Attributes:
        prefix: what stands before the names of its actors.
        incoming: the stream of outputs from its detokenizer.
        detokenizer: the latest incarnation of that.
        num_tokens: tokens of the open requests that the frontend has submitted there.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.incoming = Incoming("outputs")
        self.detokenizer = 0
        self.num_tokens = 0
        # Features of each actor that is up, by name.
        self._up: dict[str, tuple[str, ...]] = {}
        # Every actor that was heard of, by name; why it is gone for good.
        self._known: dict[str, str | None] = {}
        # The latest facts of each role.
        self.facts: dict[str, Facts] = {}
        self.is_ready = False
        """Every actor that computes a request is up."""
        self.lost: str | None = None
        """Why nothing is computed here any more; None while something may be."""

    def address(self, role: str) -> str:
        """Return the address of an actor, or of a group."""
        return self.prefix + role

    @property
    def draining(self) -> int:
        """Return how far the place is being drained: see `DRAINING`."""
        found = self.facts.get("scheduler", {}).get(DRAINING, 0)
        return found if isinstance(found, int) else 0

    @property
    def only_prefills(self) -> bool:
        """Tell whether the place is for prompts: outputs go on elsewhere, if they can."""
        return self.facts.get("scheduler", {}).get(ROLE) == "prefill"

    @property
    def answers_moves(self) -> bool:
        """Tell whether the scheduler is up and says what becomes of requests that are moved."""
        return bool(self.features("scheduler")) and bool(self.facts.get("scheduler", {}).get(MOVES))

    @property
    def is_open(self) -> bool:
        """Tell whether requests may be submitted here."""
        return self.is_ready and not self.draining

    @property
    def is_gone(self) -> bool:
        """Tell whether the place has left the topology."""
        return not self._known

    @property
    def max_model_len(self) -> int | None:
        """Return the tokens of the longest request that the executor holds, once it has said so."""
        longest = self.facts.get("executor", {}).get(MAX_MODEL_LEN)
        return longest if isinstance(longest, int) else None

    def features(self, role: str) -> list[tuple[str, ...]]:
        """Return the features of every actor of a role that is up."""
        return [features for name, features in self._up.items() if role_of(name) == role]

    def came(self, event: ActorUp) -> None:
        """Take note of an actor that is up."""
        self._up[event.address], self._known[event.address] = event.features, None
        self.changed(event)
        if role_of(event.address) == "detokenizer":
            self.detokenizer = event.incarnation
        self._learn()

    def changed(self, event: ActorUp | ActorChanged) -> None:
        """Take over the facts of an actor that is up."""
        self.facts[role_of(event.address)] = event.facts

    def went(self, event: ActorDown) -> None:
        """Take note of an actor that is down."""
        self._up.pop(event.address, None)
        if event.reason == REMOVED:
            self._known.pop(event.address, None)
        elif event.final:
            self._known[event.address] = event.reason
        self._learn()

    def _learn(self) -> None:
        up = {role_of(name) for name in self._up}
        self.is_ready = up.issuperset(RUNNING_CAST)
        self.lost = find_lost(RUNNING_CAST, self._known)


def find_lost(roles: tuple[str, ...], known: dict[str, str | None]) -> str | None:
    """Return why a role has no actor any more; None while each may have one.

    Args:
        known: every actor that was heard of, with why it is gone for good, or None.
    """
    for role in roles:
        reasons = {name: why for name, why in known.items() if role_of(name) == role}
        if reasons and None not in reasons.values():
            name, why = next(reversed(reasons.items()))
            return f"{name} is down and will not be restarted: {why}"
    return None


def is_spoken_for(address: str) -> bool:
    """Tell whether another executor of its group speaks for this one."""
    return role_of(address) == "executor" and is_follower(address)
