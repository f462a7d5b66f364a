"""The life of one actor: starting, failing, being cancelled, ending."""

from __future__ import annotations

import asyncio

import pytest
from runtime_players import Fail, Note, Ping, Pong, Slow, Stillborn, Until, Watcher

from pageant.actors.runtime import Actor, receives
from pageant.actors.runtime.mailbox import Envelope
from pageant.actors.runtime.node import Node
from pageant.actors.runtime.replies import Answer
from pageant.protocol.errors import DeadlineExceeded, PeerGone, RemoteError
from pageant.protocol.supervision import ActorEntry, Directory

SECONDS = 10.0


async def settle(turns: int = 20) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


class Recorder(Actor):
    """Keeps what it is told; `bad` crashes it."""

    def __init__(self) -> None:
        super().__init__(self.Options())
        self.notes: list[str] = []
        self.stopped = False

    async def on_stop(self) -> None:
        self.stopped = True

    @receives
    def note(self, message: Note) -> None:
        self.notes.append(message.text)
        if message.text == "bad":
            raise ValueError("bad")

    @receives
    def ping(self, request: Ping) -> Pong:
        return Pong(value=request.value)


async def add(node: Node, actor: Actor, name: str = "x", incarnation: int = 1):
    cell = node.add(name, incarnation, actor)
    await cell.start()
    return cell


async def test_after_a_crash_nothing_more_is_handled(node):
    actor = Recorder()
    cell = await add(node, actor)
    for text in ("a", "bad", "b", "c"):
        node.tell("x", Note(text=text))
    answer = Answer(node.loop)
    cell.deliver(Envelope(Ping(), "tester", reply=answer))
    with pytest.raises(PeerGone, match="crashed with ValueError: bad"):
        await answer.future
    await settle()
    assert actor.notes == ["a", "bad"] and not actor.stopped
    assert node.dead_letters == {
        "actor down": 2,
        "node unreachable": 1,
    }  # the last: no supervisor to report to
    assert node.cells == {}


async def test_an_orderly_stop_runs_on_stop_and_refuses_what_waits(node):
    actor = Recorder()
    cell = await add(node, actor)
    node.tell("x", Note(text="unheard"))
    await cell.stop()
    assert actor.stopped and actor.notes == []
    assert node.dead_letters == {"actor down": 1}


async def test_an_on_stop_that_never_returns_is_left_behind(node, caplog, monkeypatch):
    class Endless(Recorder):
        async def on_stop(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr("pageant.actors.runtime.cell.END_SECONDS_MAX", 0.01)
    await add(node, Endless(), "endless")
    await node.stop()
    assert node.cells == {} and "endless failed to stop cleanly" in caplog.text


async def test_a_failure_of_on_stop_stops_nobody_else(node, caplog):
    class Stubborn(Recorder):
        async def on_stop(self) -> None:
            raise ValueError("no")

    other = Recorder()
    await add(node, other, "first")
    await add(node, Stubborn(), "second")
    await node.stop()
    assert other.stopped and "second failed to stop cleanly" in caplog.text


async def test_on_start_raises_to_whoever_starts(node):
    cell = node.add("x", 1, Stillborn(Stillborn.Options()))
    with pytest.raises(RuntimeError, match="sprocket"):
        await cell.start()
    node.remove(cell)


async def test_a_background_task_that_fails_ends_on_start(node):
    class Waits(Actor):
        async def on_start(self) -> None:
            self.spawn(self.fail())
            await asyncio.Event().wait()

        async def fail(self) -> None:
            raise ValueError("what it waits for will not come")

    cell = node.add("x", 1, Waits(Actor.Options()))
    with pytest.raises(ValueError, match="will not come"):
        await cell.start()
    node.remove(cell)


async def test_stopping_an_actor_that_still_starts_ends_its_start(node):
    cell = node.add("x", 1, Slow(Slow.Options()))
    starting = asyncio.create_task(cell.start())
    await settle(3)
    await cell.stop()
    with pytest.raises(PeerGone, match="stopped while it was starting"):
        await starting


async def test_cancelling_a_start_cancels_on_start(node):
    cell = node.add("x", 1, Slow(Slow.Options()))
    starting = asyncio.create_task(cell.start())
    await settle(3)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    node.remove(cell)


async def test_an_on_start_that_is_cancelled_from_within_is_a_failure(node):
    class Confused(Actor):
        async def on_start(self) -> None:
            raise asyncio.CancelledError

    cell = node.add("x", 1, Confused(Actor.Options()))
    with pytest.raises(RuntimeError, match="cancelled by what it awaited"):
        await cell.start()
    node.remove(cell)


class Awkward(Actor):
    """Treats cancellation as it should not."""

    def __init__(self) -> None:
        super().__init__(self.Options())
        self.gate = asyncio.Event()
        self.depth: list[int] = []

    @receives
    async def swallow(self, request: Fail) -> Pong:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            return Pong(text="swallowed")
        return Pong(text="finished")

    @receives
    async def stray(self, request: Until) -> Pong:
        if request.event == "tell":
            await asyncio.sleep(0)
        raise asyncio.CancelledError

    @receives
    def ping(self, request: Ping) -> Pong:
        self.depth.append(asyncio.current_task().cancelling())
        return Pong(value=request.value)


async def test_a_handler_that_swallows_its_cancellation_leaves_no_trace_of_it(node):
    actor = Awkward()
    await add(node, actor)
    for _ in range(3):
        asked = asyncio.create_task(node.ask("x", Fail(), SECONDS))
        await settle(3)
        asked.cancel()
        await asyncio.wait([asked])
    await node.ask("x", Ping(), SECONDS)
    assert actor.depth == [0]


async def test_a_handler_that_swallows_its_cancellation_does_not_hold_up_the_stop(node):
    cell = await add(node, Awkward())
    asked = asyncio.create_task(node.ask("x", Fail(), SECONDS))
    await settle(3)
    await cell.stop()
    assert (await asked).text == "swallowed"


async def test_a_handler_that_finishes_as_it_is_cancelled_does_not_end_the_actor(node):
    actor = Awkward()
    await add(node, actor)
    asked = asyncio.create_task(node.ask("x", Fail(), SECONDS))
    await settle(3)
    actor.gate.set()  # the handler will wake up in the next turn
    asked.cancel()  # and is cancelled before
    await asyncio.wait([asked])
    assert (await node.ask("x", Ping(value=1), SECONDS)).value == 1
    assert actor.depth == [0]


async def test_a_stray_cancellation_in_a_handler_fails_the_ask_alone(node):
    await add(node, Awkward())
    with pytest.raises(RemoteError, match="CancelledError"):
        await node.ask("x", Until(event="ask"), SECONDS)
    assert (await node.ask("x", Ping(value=1), SECONDS)).value == 1


async def test_a_stray_cancellation_in_a_concurrent_handler_fails_the_ask_alone(node):
    class Beside(Awkward):
        @receives(concurrent=True)
        async def stray(self, request: Until) -> Pong:
            await asyncio.sleep(0)
            raise asyncio.CancelledError

    await add(node, Beside())
    with pytest.raises(RemoteError, match="CancelledError"):
        await node.ask("x", Until(event=""), SECONDS)
    assert (await node.ask("x", Ping(value=1), SECONDS)).value == 1


async def test_a_stray_cancellation_of_a_tell_is_a_crash(node):
    cell = await add(node, Awkward())
    node.tell("x", Until(event="tell"))
    await settle()
    assert cell.closed and node.cells == {}


async def test_serial_handlers_run_one_at_a_time_and_concurrent_ones_interleave(node):
    class Both(Actor):
        def __init__(self) -> None:
            super().__init__(self.Options())
            self.running = self.most = 0

        async def work(self) -> Pong:
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0)
            self.running -= 1
            return Pong()

        @receives
        async def one_at_a_time(self, request: Ping) -> Pong:
            return await self.work()

        @receives(concurrent=True)
        async def beside(self, request: Fail) -> Pong:
            return await self.work()

    actor = Both()
    await add(node, actor)
    await asyncio.gather(*(node.ask("x", Ping(), SECONDS) for _ in range(5)))
    assert actor.most == 1
    await asyncio.gather(*(node.ask("x", Fail(), SECONDS) for _ in range(5)))
    assert actor.most == 5


async def test_a_long_queue_gives_others_a_turn(node):
    actor = Recorder()
    await add(node, actor)
    for index in range(1000):
        node.tell("x", Note(text=str(index)))
    await settle(2)
    assert 0 < len(actor.notes) < 1000
    await node.ask("x", Ping(), SECONDS)
    assert len(actor.notes) == 1000


async def test_whoever_watches_must_hear(node):
    cell = await add(node, Recorder())
    with pytest.raises(TypeError, match="x watches y but has no handler for ActorUp"):
        node.watch("y", cell)


async def test_two_actors_cannot_share_a_name(node):
    await add(node, Recorder())
    with pytest.raises(AssertionError, match="x lives on here already"):
        node.add("x", 2, Recorder())


async def test_group_members_are_asked_in_turn_and_told_together(node):
    actors = [Recorder() for _ in range(3)]
    for index, actor in enumerate(actors):
        await add(node, actor, f"group/{index}")
    node.tell("group/*", Note(text="all"))
    for _ in range(6):
        await node.ask("group", Ping(), SECONDS)
    assert [actor.notes for actor in actors] == [["all"]] * 3
    assert [cell.statistics().handled for cell in node.cells.values()] == [3, 3, 3]


async def test_a_group_is_asked_while_one_of_it_ends(node):
    class Slow(Recorder):
        async def on_stop(self) -> None:
            await asyncio.Event().wait()

    ending, other = await add(node, Slow(), "group/0"), await add(node, Recorder(), "group/1")
    stopping = asyncio.create_task(ending.stop())
    await settle(2)
    for _ in range(3):
        await node.ask("group", Ping(), SECONDS)
    assert other.statistics().handled == 3 and not stopping.done()
    stopping.cancel()


async def test_a_replicas_actor_finds_its_own_first(node):
    own, other = Recorder(), Recorder()
    asker = await add(node, Watcher(Watcher.Options()), "replica-1/asker")
    await add(node, own, "replica-1/x")
    await add(node, other, "x")
    asker.actor.tell("x", Note(text="hello"))
    await settle(3)
    assert (own.notes, other.notes) == (["hello"], [])


@pytest.mark.parametrize("prefix", ["", "replica-1/", "small/", "small/replica-1/"])
async def test_a_watcher_knows_those_of_its_replica_by_their_own_names(node, prefix):
    watcher = await add(node, Watcher(Watcher.Options(watched="group/*")), f"{prefix}watcher")
    names = (f"{prefix}group/0", "large/group/1", f"{prefix}group/2")
    entries = [ActorEntry(name=name, node="there", incarnation=1, up=True) for name in names]
    node.update(Directory(version=1, nodes=(), actors=tuple(entries)))
    await settle(3)
    assert watcher.actor.log == ["up group/0#1", "up group/2#1"]


async def test_whoever_watches_late_hears_of_those_that_are_down_for_good(node):
    entries = (
        ActorEntry(name="group/0", node="", incarnation=3, up=False, final=True, reason="it failed"),
        ActorEntry(name="group/1", node="", incarnation=1, up=False),
        ActorEntry(name="group/2", node="there", incarnation=1, up=True),
    )
    node.update(Directory(version=1, nodes=(), actors=entries))
    watcher = await add(node, Watcher(Watcher.Options(watched="group/*")), "watcher")
    await settle(3)
    assert watcher.actor.log == ["down group/0#3 for good", "up group/2#1"]


async def test_an_actor_that_has_just_ended_here_is_waited_for(node):
    """The directory, which comes from the supervisor, still has it."""
    entry = ActorEntry(name="x", node="here", incarnation=1, up=True)
    node.update(Directory(version=1, nodes=(), actors=(entry,)))
    with pytest.raises(DeadlineExceeded, match="x was down until the deadline"):
        await node.ask("x", Ping(), 0.01)
    node.tell("x", Note(text=""))
    assert node.dead_letters == {"actor down": 1}


async def test_an_ask_of_a_stopped_node_fails_at_once(node):
    await node.stop()
    with pytest.raises(PeerGone, match="node here has stopped"):
        await node.ask("x", Ping(), SECONDS)
