"""Groups of actors that fall and rise as one: all members have the same incarnation, and live or do not live together.

The first member stands for its group. Its life counts the group's deaths, and says when the next life begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pageant.actors.runtime.instructions import Stop
from pageant.actors.runtime.lives import ActorLife, RestartLimits

__all__ = ["Bonds"]


class Bonds:
    """The groups among some actors. An actor that is bound to none is a group of its own.

    Args:
        actors: all actors, by name.
    """

    def __init__(self, actors: Mapping[str, ActorLife]) -> None:
        self._actors = actors

    def members(self, actor: ActorLife) -> list[ActorLife]:
        """Return the actor's group in the order of its members, the actor itself included."""
        bound = actor.plan.bound
        return [one for one in self._actors.values() if one.plan.bound == bound] if bound else [actor]

    def others(self, actor: ActorLife) -> list[ActorLife]:
        """Return the members of the actor's group but the actor."""
        return [one for one in self.members(actor) if one is not actor]

    def named(self, name: str) -> list[ActorLife]:
        """Return the group of the actor of that name, and the actors that are numbered under it (`name/0`)."""
        named = self._actors.get(name)
        group = [] if named is None else self.members(named)
        return group + [one for one in self._actors.values() if one.plan.name.startswith(f"{name}/")]

    def end(
        self,
        actor: ActorLife,
        error: str,
        traceback: str,
        now: float,
        limits: RestartLimits,
        *,
        permanent: bool = False,
    ) -> list[Stop]:
        """Record the death of a member, at `now` seconds, as one of its group. Return the orders to the others."""
        first, *others = self.members(actor)
        alive = [member for member in self.others(actor) if member.alive]
        reason = error if first is actor else _because(actor, error)
        first.end(reason, traceback, now, limits, permanent=permanent)
        for member in others:
            member.mark_exited(error if member is actor else _because(actor, error))
            member.final = first.final
        return _stops(alive, _because(actor, error))

    def fall(self, ended: Iterable[ActorLife], reason: str) -> list[Stop]:
        """End the groups of actors that have ended through no fault of theirs. Return the orders to the others.

        What has become of an ended actor, whether it is down for good, becomes of its group.
        """
        stops: list[Stop] = []
        for actor in ended:
            alive = [member for member in self.others(actor) if member.alive]
            for member in self.others(actor):
                member.restore_former()
            for member in alive:
                member.mark_exited(_because(actor, reason))
            stops += _stops(alive, _because(actor, reason))
            for member in self.others(actor):
                member.final = member.final or actor.final
        return stops

    def stopped(self, name: str, incarnation: int) -> list[ActorLife]:
        """Record that a life which was ordered to end is over. Return its group, if the next life of that is due."""
        actor = self._actors.get(name)
        if actor is None or not actor.is_stopping or actor.incarnation != incarnation:
            return []
        actor.is_stopping = False
        members = self.members(actor)
        return members if members[0].retry_at is None else []

    def rising(self, actors: Iterable[ActorLife], is_up: Callable[[str], bool]) -> list[ActorLife]:
        """Begin a life of these actors and of their groups, where all nodes are up. Return those that begin.

        A group waits for the end of its members' last lives. One that is stuck ends its process, and the group with
        it: it would have begun in vain.

        Args:
            is_up: tells whether a node is up.
        """
        begun: list[ActorLife] = []
        for actor in actors:
            members = self.members(actor)
            if any(member.alive or member.final or member.is_stopping for member in members):
                continue
            if not all(is_up(member.plan.node) for member in members):
                continue
            self._begin(members)
            begun += members
        return begun

    def _begin(self, members: list[ActorLife]) -> None:
        """Begin the next life of all members, under one incarnation that none of them has had."""
        latest = max(member.incarnation for member in members)
        for index, member in enumerate(members):
            member.incarnation = latest
            member.begin()
            if index:
                member.restarts = 0  # the first member counts those of the group


def _stops(members: Iterable[ActorLife], reason: str) -> list[Stop]:
    """Return the orders to end the last lives of members."""
    stops = []
    for member in members:
        member.is_stopping = True
        stops.append(Stop(member.plan.node, member.plan.name, member.incarnation, reason))
    return stops


def _because(actor: ActorLife, reason: str) -> str:
    return f"{actor.plan.name}, of its group, has ended: {reason}"
