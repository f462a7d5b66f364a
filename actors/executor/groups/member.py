"""Base of members of a group, whether they lead or follow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pageant.actors.executor.groups.joining import describe
from pageant.actors.executor.groups.meeting import HELD_SECONDS, Meeting, is_broken
from pageant.actors.executor.succeeding import Succeeding
from pageant.actors.runtime.address import SUPERVISOR
from pageant.protocol.ranks import RankReady
from pageant.protocol.supervision import GetDirectory

if TYPE_CHECKING:
    from pageant.actors.executor.runners.loaded_model import LoadedModel

__all__ = ["Member"]


class Member(Succeeding):
    """Member of a group, if it has one: it leaves the group when it ends, however it does."""

    _meeting: Meeting | None = None
    """This member's side of the group, once it meets."""

    async def _described(self, rank: int, loaded: LoadedModel) -> RankReady:
        """Return what the leader is to know of this member."""
        directory = await self.ask(SUPERVISOR, GetDirectory())
        endpoints = [node.endpoint for node in directory.nodes]
        return await self.offload(describe, self.options, rank, loaded, endpoints)

    async def on_stop(self) -> None:
        """End every wait, then leave, when the computing thread is back."""
        if self._meeting is not None:
            self._abort(f"{self.name} was stopped")
            await self.offload(self._meeting.close)

    def on_crash(self, error: BaseException) -> None:
        """Leave at once: the process may live on, and the memory that the group shares would stay in it."""
        if self._meeting is not None:
            self._abort(f"{self.name} has ended: {error}")
            self._meeting.close()

    def _abort(self, reason: str) -> None:
        """Have every wait of this member and of the others end."""
        if self._meeting is not None:
            self._meeting.abort(reason)

    async def _outlive_cause(self, error: BaseException) -> None:
        """Wait, after the group's operations have ended, for whoever is the cause to be seen first: its supervisor
        then stops this member. Returns at once for any other error."""
        if self.options.num_members > 1 and is_broken(error):
            await asyncio.sleep(HELD_SECONDS)
