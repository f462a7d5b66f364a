"""The frontend of a replay: asks a topology's scheduler what was asked of another, and notes what comes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.runtime.streams import Arrival, Incoming
from pageant.protocol.errors import PeerGone
from pageant.protocol.message import Message, Request
from pageant.protocol.roles import FRONTEND
from pageant.protocol.serving import Abort, OutputBatch
from pageant.protocol.supervision import ActorDown, ActorUp
from pageant.scripts.replay.load import END, Load, aborts, as_recorded, read_load, said
from pageant.scripts.replay.timeline import Course, Timeline

OPEN_MAX = 16_384  # as a frontend's
PEERS = ("scheduler", "detokenizer", "blocks", "executor/*")


class Played(Message, frozen=True, kw_only=True):
    """All requests have ended."""

    requests: int


class Play(Request[Played], frozen=True, kw_only=True):
    """Ask the player to begin. It answers at the end."""


class Player(Actor):
    """Stands where a frontend does.

    Attributes:
        timeline: what came of it, by the requests' numbers in the recording.
    """

    role = FRONTEND

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the player.

        Attributes:
            recording: its file.
            replica: of which of its models.
            speed: 2 is twice as fast as it was; None is all at once.
            stand_in: there is no model: what is drawn is what was, which `RecordedExecutor` knows by a request's seed.
        """

        recording: str
        replica: str = ""
        speed: float | None = 1.0
        stand_in: bool = False

        def __post_init__(self) -> None:
            if self.speed is not None and not 0 < self.speed < 1e6:
                raise ValueError(f"speed is {self.speed}; expected a number above 0")

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.timeline = Timeline()
        self._incoming = Incoming("outputs")
        self._open: dict[int, Course] = {}
        self._leaves_after: dict[int, int] = {}  # tokens, of those whose users left
        self._changed = asyncio.Event()
        self._gone: str | None = None

    async def on_start(self) -> None:
        options = self.options
        self._load: Load = await self.offload(read_load, Path(options.recording), options.replica)
        for peer in PEERS:
            self.watch(peer)

    @receives(concurrent=True)
    async def play(self, request: Play) -> Played:
        """Submits each request when it is its time, and takes back those that were taken back."""
        speed = self.options.speed
        events: list[tuple[float, int, bool]] = [
            (course.submitted_at, number, False) for number, course in enumerate(self._load.courses)
        ]
        if speed is None:
            self._leaves_after = {
                number: max(1, len(self._load.courses[number].token_ids)) for number, _ in aborts(self._load)
            }
        else:
            events += [(at, number, True) for number, at in aborts(self._load)]
        events.sort()
        began, first = self.clock.now(), events[0][0]
        for at, number, is_abort in events:
            if speed is not None:
                await asyncio.sleep(max(0.0, began + (at - first) / speed - self.clock.now()))
            if is_abort:
                self._abort(number)
            else:
                await self._until(lambda: len(self._open) < OPEN_MAX)
                self._submit(number)
        await self._until(lambda: not self._open)
        return Played(requests=len(self.timeline.courses))

    def _submit(self, number: int) -> None:
        recorded, speed = self._load.submits[number], self.options.speed
        deadline = recorded.deadline
        if deadline is not None:
            deadline = deadline / speed if speed is not None else None
        submit = msgspec.structs.replace(
            recorded,
            request_id=str(number),
            frontend=self.name,
            params=said(self._load, number) if self.options.stand_in else as_recorded(self._load, number),
            deadline=deadline,
            trace=None,
        )
        self.timeline.submitted((self.name, submit.request_id), submit, self.clock.now())
        self._open[number] = self.timeline.courses[self.name, submit.request_id]
        self.tell("scheduler", submit)

    def _abort(self, number: int) -> None:
        if self._open.pop(number, None) is not None:
            self.timeline.left((self.name, str(number)), self.clock.now())
            self.tell("scheduler", Abort(frontend=self.name, request_ids=(str(number),)))
            self._changed.set()

    async def _until(self, condition: Any) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()
            if self._gone is not None:
                raise PeerGone(self._gone)

    @receives
    def outputs(self, batch: OutputBatch) -> None:
        """One step's outputs."""
        arrival = self._incoming.arrive(batch.number, self.sender_incarnation, batch.start)
        if arrival is Arrival.NEXT:
            for _, request_id in self.timeline.output(self.name, batch, self.clock.now()):
                self._went_on(int(request_id))
        if (reply := self._incoming.reply(arrival)) is not None:
            self.tell(self.sender, reply)

    def _went_on(self, number: int) -> None:
        course = self._open[number]
        if course.ended:
            if course.token_ids and course.token_ids[-1] == END:
                course.token_ids[-1:] = self._load.courses[number].token_ids[-1:]
            del self._open[number]
            self._changed.set()
        elif len(course.token_ids) >= self._leaves_after.get(number, len(course.token_ids) + 1):
            self._abort(number)

    @receives
    def peer_up(self, event: ActorUp) -> None:
        """Take note of a peer. All of them are there before it plays."""

    @receives
    def peer_down(self, event: ActorDown) -> None:
        """End the replay: what the peer had of it is lost, and with it what the replay is for."""
        self._gone = f"{event.address} went down during the replay: {event.reason}"
        self._changed.set()
