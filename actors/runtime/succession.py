"""Swaps: an actor is replaced by a successor, with its group where it has one. A core, part of `Supervision`.

A group is swapped as one, as it falls and rises as one. Until all successors of it have started, the former plans can
return; they do when any of the successors fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pageant.actors.runtime.bonds import Bonds
from pageant.actors.runtime.instructions import Instruction, Publish
from pageant.actors.runtime.lives import ActorLife
from pageant.actors.runtime.plans import ActorPlan
from pageant.protocol.supervision import SWAPPED

__all__ = ["Succession"]


class Succession:
    """The part of a supervision that swaps actors, and changes their plans."""

    _actors: dict[str, ActorLife]
    """All actors, by name."""
    _bonds: Bonds
    """The groups among them."""

    def _start(self, actors: Iterable[ActorLife]) -> list[Instruction]:
        """Begin the next life of actors that are down, each with its group."""
        raise NotImplementedError

    def plans_of(self, name: str) -> list[ActorPlan]:
        """Return the plans of an actor's group, the first member's first; that of the actor alone where it has none.

        Return none unless all of them are up, and are not being swapped.
        """
        actor = self._actors.get(name)
        members = [] if actor is None else self._bonds.members(actor)
        is_there = all(member.up and member.former is None for member in members)
        return [member.plan for member in members] if is_there else []

    def plans_of_down(self, name: str) -> list[ActorPlan]:
        """Return the plans of an actor's group if all of it is down, between two lives or for good; else none."""
        actor = self._actors.get(name)
        members = [] if actor is None else self._bonds.members(actor)
        are_down = all(not (one.alive or one.is_stopping) and one.former is None for one in members)
        return [member.plan for member in members] if are_down else []

    def plan_of(self, name: str) -> ActorPlan | None:
        """Return an actor's plan, if it and its group are up and are not being swapped; else None."""
        return next((plan for plan in self.plans_of(name) if plan.name == name), None)

    @property
    def actor_names(self) -> list[str]:
        """Return the names of all actors."""
        return [*self._actors]

    def first_of(self, name: str) -> str:
        """Return the name of the first member of an actor's group; its own where it has none."""
        actor = self._actors.get(name)
        return name if actor is None else self._bonds.members(actor)[0].plan.name

    def swap(self, *plans: ActorPlan) -> list[Instruction]:
        """Begin lives with these plans, of an actor or of all members of a group, which are up or down for now.

        Lives that go on end. Deaths of former lives no longer count. If a successor fails, the former plans return.
        """
        present = self.plans_of(plans[0].name) or self.plans_of_down(plans[0].name)
        assert [plan.name for plan in present] == [plan.name for plan in plans]
        actors = [self._actors[plan.name] for plan in plans]
        for actor, plan in zip(actors, plans, strict=True):
            actor.former, actor.plan = actor.plan, plan
            if actor.alive:
                actor.mark_exited(SWAPPED)
            else:
                actor.final, actor.early_deaths, actor.retry_at = False, 0, None
        return [Publish(), *self._start(actors)]

    def roll_back(self, name: str, error: str) -> list[Instruction]:
        """Restore the former plans of an actor's group if its successors have not all started; else do nothing.

        Nodes that still run a successor end it before the former begins again.
        """
        actor = self._actors.get(name)
        if actor is None or actor.former is None:
            return []
        members = self._bonds.members(actor)
        for member in members:
            member.restore_former()
            member.mark_exited(error)
        return [Publish(), *self._start(members)]

    def _succeeded(self, actor: ActorLife) -> None:
        """Note that an actor has started: the former plans do not return once its whole group has."""
        members = self._bonds.members(actor)
        if all(member.up for member in members):
            for member in members:
                member.former = None

    def planned(self, name: str) -> ActorPlan | None:
        """Return the plan of an actor's next life, whether it is up or not; None if there is no such actor."""
        actor = self._actors.get(name)
        return None if actor is None else actor.plan

    def amend(self, name: str, change: Callable[[ActorPlan], ActorPlan]) -> ActorPlan:
        """Change the plan of the next life of an actor, and of its group; the present one goes on. Return the new
        plan.

        Until a successor has started, the former plan is changed likewise.
        """
        actor = self._actors[name]
        for member in self._bonds.members(actor):
            member.plan = change(member.plan)
            if member.former is not None:
                member.former = change(member.former)
        return actor.plan
