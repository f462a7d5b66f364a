"""Meeting of a group's members for its operations. Loads no torch before they do.

The leader arranges the meeting once it knows where all members are. On one host they share memory. Over
torch.distributed they find one another by keys, which travel in messages of ours: no port is open to strangers, and
nothing is written to a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pageant.actors.executor.group_shape import GroupShape
from pageant.actors.runtime.transport.addresses import LOOPBACK, is_private
from pageant.protocol.errors import ConfigurationError, PeerGone
from pageant.protocol.ranks import FormGroup, MeetingKey, RankReady

if TYPE_CHECKING:
    from pageant.kernels.collectives.base import Collectives
    from pageant.kernels.collectives.group_operations import GroupOperations
    from pageant.kernels.collectives.process_group import ProcessGroup
    from pageant.kernels.collectives.shared_memory import SharedMemory

__all__ = ["HELD_SECONDS", "KeyQueue", "Meeting", "arranged", "host_id", "is_broken"]

log = logging.getLogger("pageant.executor")

DEADLINE_SECONDS = 120.0
"""How long an operation may wait for other members. The supervisor sees nearly every death long before."""

HELD_SECONDS = 10.0
"""How long a member that finds the group broken waits for its supervisor, who knows the cause, to stop it."""

LOCAL_ADDRESS = "127.0.0.1"
"""Where members of one host reach each other."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_id() -> str:
    """Return a name of this host's that no other host has.

    A container with processes or a network of its own is a host: others cannot open what its processes share.
    """
    parts = [_BOOT_ID.read_text().strip()] if _BOOT_ID.exists() else []
    for kind in ("pid", "net"):
        with contextlib.suppress(OSError):
            parts.append(os.readlink(f"/proc/self/ns/{kind}"))
    return " ".join(parts)


def is_broken(error: BaseException) -> bool:
    """Tell whether an error is the death of another member, or the end of the group's operations that follows it."""
    from pageant.kernels.collectives.base import GroupBroken

    return isinstance(error, GroupBroken | PeerGone)


class KeyQueue:
    """Keys that a meeting's thread puts, for the actor's loop. Made on that loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._keys: asyncio.Queue[MeetingKey] = asyncio.Queue()

    def put(self, key: str, value: bytes) -> None:
        """Add a key. Called from any thread."""
        self._loop.call_soon_threadsafe(self._keys.put_nowait, MeetingKey(key=key, value=value))

    async def get(self) -> MeetingKey:
        """Return the next key, when there is one."""
        return await self._keys.get()


class Meeting:
    """Member's side of its group.

    Args:
        form: how the group meets.
        rank: the member's number.
        shape: the group's.
        publish: brings a key and its value to `put_all` of every other member. Called from any thread.
    """

    def __init__(
        self, form: FormGroup, rank: int, shape: GroupShape, publish: Callable[[str, bytes], None]
    ) -> None:
        from pageant.kernels.collectives.mirrored_store import MirroredStore

        self.form = form
        self._rank, self._shape = rank, shape
        self._store = MirroredStore(publish)
        self._made: list[SharedMemory | ProcessGroup] = []
        """The groups of operations that this member takes part in, from before it waits for others there."""
        self._aborted = ""

    def put_all(self, keys: Iterable[MeetingKey]) -> None:
        """Take keys that other members have published."""
        for one in keys:
            self._store.put(one.key, one.value)

    def join(self) -> GroupOperations:
        """Meet the others. Blocks until all are there.

        Raises:
            GroupBroken: they do not come, or the meeting was aborted.
        """
        from pageant.kernels.collectives.group_operations import GroupOperations

        with self._store.mirroring() if self.form.collectives == "gloo" else contextlib.nullcontext():
            everyone = self._met(self.form.meeting, self._rank, self._shape.size)
            stage = self._met_in_stage() if self._shape.stages > 1 else None
        return GroupOperations(everyone, stage)

    def _met_in_stage(self) -> Collectives:
        """Meet the members of this member's stage."""
        from pageant.kernels.collectives.local import local_group

        each = self._shape.each
        return local_group(1)[0] if each == 1 else self._met(self.form.stage_meeting, self._rank % each, each)

    def _met(self, meeting: str, rank: int, size: int) -> Collectives:
        from pageant.kernels.collectives.base import GroupBroken

        made = self._make(meeting, rank, size)
        self._made.append(made)
        if self._aborted:  # before it was there to be aborted
            raise GroupBroken(self._aborted)
        made.meet()
        return made

    def _make(self, meeting: str, rank: int, size: int) -> SharedMemory | ProcessGroup:
        if self.form.collectives == "shm":
            from pageant.kernels.collectives.shared_memory import SharedMemory

            return SharedMemory(meeting, rank, DEADLINE_SECONDS, DEADLINE_SECONDS, meets=False)
        from pageant.kernels.collectives.process_group import ProcessGroup

        return ProcessGroup(
            *(self._store.store, meeting, rank, size),
            address=self.form.address,
            deadline_seconds=DEADLINE_SECONDS,
            join_seconds=DEADLINE_SECONDS,
            meets=False,
        )

    def abort(self, reason: str) -> None:
        """End every wait of this member in the group's operations, that for the others to come, and all later ones."""
        self._aborted = self._aborted or reason
        for made in self._made:
            made.abort(reason)

    def close(self) -> None:
        """Leave the group. For the computing thread, when nothing is computed any more."""
        for made in self._made:
            made.close()


@contextlib.contextmanager
def arranged(
    wanted: str, name: str, ranks: Sequence[RankReady], shape: GroupShape
) -> Iterator[list[FormGroup]]:
    """Yield how each member is to meet the others, in the order of their ranks. They can do so within the context.

    Args:
        wanted: the option `collectives`.
        name: the group's, which no other life of it has.
        ranks: all members, the leader first.
        shape: the group's.

    Raises:
        ConfigurationError: members are to share memory and cannot, or are on hosts that do not reach one another.
    """
    hosts = [rank.host for rank in ranks]
    if len({*hosts}) > 1:
        _check_addresses(name, ranks)
    in_stages = shape.stages > 1 and shape.each > 1
    with contextlib.ExitStack() as stack:
        kind, where = "gloo", name
        stages = [f"{name}/stage-{stage}" if in_stages else "" for stage in range(shape.stages)]
        if wanted != "gloo" and not (objection := _why_no_memory(hosts)):
            from pageant.kernels.collectives.segment import Segment

            kind, where = "shm", stack.enter_context(Segment(len(ranks))).address
            if in_stages:
                stages = [stack.enter_context(Segment(shape.each)).address for _ in stages]
        elif wanted == "shm":
            raise ConfigurationError(
                f"collectives is 'shm', but the members of {name} {objection}; expected auto or gloo"
            )
        yield [
            FormGroup(
                collectives=kind,
                meeting=where,
                num_near=hosts.count(rank.host),
                stage_meeting=stages[number // shape.each],
                address=rank.address if len({*hosts}) > 1 else LOCAL_ADDRESS,
            )
            for number, rank in enumerate(ranks)
        ]


def _check_addresses(name: str, ranks: Sequence[RankReady]) -> None:
    """Refuse members on several hosts that others cannot reach; warn of those that strangers might reach."""
    for rank in ranks:
        if rank.address in LOOPBACK:
            raise ConfigurationError(
                f"the members of {name} are on {len({one.host for one in ranks})} hosts, and executor/{rank.rank} has "
                "no address that others reach; expected nodes that listen at tcp:// addresses of their hosts"
            )
        if not is_private(rank.address):
            log.warning(
                "executor/%d of %s exchanges tensors at %s, a public address, neither authenticated nor encrypted",
                *(rank.rank, name, rank.address),
            )


def _why_no_memory(hosts: Sequence[str]) -> str:
    """Return why members on these hosts cannot share memory; "" if they can."""
    if len({*hosts}) > 1:
        return f"are on {len({*hosts})} hosts"
    from pageant.kernels.collectives.base import GroupMisuse
    from pageant.kernels.collectives.segment import group_functions

    try:
        group_functions()
    except GroupMisuse as error:
        return f"have no library to do so with: {error}"
    return ""
