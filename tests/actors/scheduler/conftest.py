"""A whole play without a network, a clock or a model: the real scheduler, block manager and executor.

Their messages are delivered in any order that is FIFO per sender and receiver. The model's next token is a known
function of the prefix. What must always hold is checked after every message.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter, defaultdict, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace, coroutine
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from pageant.actors.blocks.actor import BlockManager
from pageant.actors.executor.actor import Executor
from pageant.actors.executor.batch.inputs import UNKNOWN
from pageant.actors.executor.runners.proposers.base import Verified
from pageant.actors.executor.tiers.moving import Way
from pageant.actors.runtime.streams import Arrival, Incoming
from pageant.actors.scheduler.actor import Scheduler
from pageant.actors.scheduler.core import SchedulerCore
from pageant.actors.scheduler.recovery import is_suspect
from pageant.actors.scheduler.request import State
from pageant.protocol.allocation import Assigned
from pageant.protocol.arrays import freeze, int32, int64
from pageant.protocol.drafting import Speculation
from pageant.protocol.lifecycle import PauseMode, PauseScheduling, ResetPrefixCache, ResumeScheduling
from pageant.protocol.outputs import OpenOutput, Stopped, TokenBatch
from pageant.protocol.sampling import RequestOutputKind, SamplingParams
from pageant.protocol.serving import Abort, Finished, OutputBatch, Resumption, Submit
from pageant.protocol.stepping import StepPlan
from pageant.protocol.supervision import ActorDown, ActorUp
from pageant.protocol.verification import NO_DRAFTS, Drafts
from pageant.scripts.conformance.shadow import first_read

VOCABULARY = 32
END_TOKEN = 0
ROOT = 0x9E3779B97F4A7C15
SUPERVISOR, SCHEDULER, BLOCKS, EXECUTOR, DETOKENIZER = [
    "supervisor",
    "scheduler",
    "blocks",
    "executor/0",
    "detokenizer",
]
CAST = (SCHEDULER, BLOCKS, EXECUTOR, DETOKENIZER)
FRONTENDS = ("frontend", "other-frontend")
KEEPERS = (SCHEDULER, DETOKENIZER)


def follow(prefix: int, token: int) -> int:
    """The hash of a prefix with one more token."""
    prefix = (prefix ^ (token + 1)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    return prefix ^ (prefix >> 29)


def next_token(prefix: int, forbidden: tuple[int, ...] = ()) -> int:
    """Return what the model says after a prefix."""
    token = (prefix >> 17) % VOCABULARY
    while token in forbidden:
        token = (token + 1) % VOCABULARY
    return token


def letter(token: int) -> str:
    return chr(64 + token)


@dataclass(frozen=True)
class Setting:
    """One stage."""

    num_blocks: int = 16
    block_size: int = 4
    max_num_seqs: int = 6
    max_num_batched_tokens: int = 24
    max_model_len: int = 56
    credit: int = 4
    enable_prefix_caching: bool = True
    policy: str = "fcfs"
    async_scheduling: bool = True
    short_step_seconds: float = 0.005
    max_steps_per_plan: int = 8
    share_final: float = 0.0  # of the requests, those whose tokens nobody awaits but at their end
    host_blocks: int = 0
    disk_blocks: int = 0
    clock_ticks: float = 0.0  # at random, up to this, whenever somebody looks
    windows: tuple[int | None, ...] = (None,)
    long_prefill_token_threshold: int | None = None
    speculation: Speculation | None = None


@dataclass(eq=False)
class Request:
    """Request of a user: what was asked for, what is right, and what came."""

    submit: Submit
    right: list[int]
    reason: str
    tokens: list[int] = field(default_factory=list)
    ends: list[Finished] = field(default_factory=list)
    aborted: bool = False
    orphaned: bool = False  # nobody waits for its end: its frontend died, or gave it up before a death
    resumed: bool = False  # its frontend has submitted it more than once
    may_abort: bool = False  # it was open when an operator paused with `abort`

    @property
    def ended(self) -> bool:
        return bool(self.ends) or self.orphaned


def answer(prompt: list[int], params: SamplingParams, max_model_len: int) -> tuple[list[int], str]:
    """The right tokens of a request, and why they end."""
    prefix = ROOT
    for token in prompt:
        prefix = follow(prefix, token)
    room = max_model_len - len(prompt)
    if room < 1 or not prompt:
        return [], "error"
    longest = room if params.max_tokens is None else min(room, params.max_tokens)
    ends = () if params.ignore_eos else (END_TOKEN,)
    output: list[int] = []
    text = ""
    while True:
        forbidden = (*ends, *params.stop_token_ids) if len(output) < params.min_tokens else ()
        token = next_token(prefix, forbidden)
        prefix = follow(prefix, token)
        output.append(token)
        text += letter(token)
        if len(output) > params.min_tokens and any(text.endswith(stop) for stop in params.stop):
            return output, "stop"
        if len(output) >= params.min_tokens and token in (*ends, *params.stop_token_ids):
            return output, "stop"
        if len(output) >= longest:
            return output, "length"


class ShadowHost:
    """Slots of the host's memory, with what is in them."""

    block_bytes = 1000

    def __init__(self, runner: ShadowRunner) -> None:
        self.runner, self.slots = runner, {}
        self.moved: Counter[str] = Counter()

    def move(self, move: Any) -> None:
        kv, size, slots = self.runner.kv, self.runner.size, self.slots
        for source, to in zip(move.sources.tolist(), move.destinations.tolist(), strict=True):
            if move.way is Way.SAVE:
                slots[to] = kv[source * size : source * size + size]
            elif move.way is Way.WRITE:
                slots[to] = slots[source]
            else:
                kv[to * size : to * size + size] = slots[source]
        self.moved[move.way.value] += len(move.sources)


class ShadowRunner:
    """A model whose KV is a hash of the prefix: what it reads is checked, position by position."""

    dtype = "float32"
    kernels = ""
    whole_prompts = False

    def __init__(self, setting: Setting) -> None:
        self.num_blocks, self.size = setting.num_blocks, setting.block_size
        self.max_model_len = setting.max_model_len
        self.kv: list[int | None] = [None] * (setting.num_blocks * setting.block_size)
        self.packed: dict[int, list[tuple[int, list[int]]]] = {}  # by step: its rows and their tokens
        self.last_drawn: dict[int, int] = {}
        self.drawn: dict[tuple[int, int], int] = {}  # by row and position, the last time
        self.tokens_computed = self.tokens_unknown = self.blocks_copied = 0
        self.host, self.windows, self.max_model_len = (
            ShadowHost(self),
            setting.windows,
            setting.max_model_len,
        )

    def launch(self, inputs: Any) -> Any:
        slots, tokens, positions = inputs.slots.tolist(), inputs.token_ids.tolist(), inputs.positions.tolist()
        every = [slot for of_group in slots for slot in of_group]
        for at, row in zip(inputs.unknown.tolist(), inputs.unknown_rows.tolist(), strict=True):
            tokens[at] = self.last_drawn[row]
            self.tokens_unknown += 1
        assert len(set(every)) == len(every), "two tokens of one step are written to the same slot"
        self.copy(inputs.copy_sources.tolist(), inputs.copy_destinations.tolist())
        self.tokens_computed += len(tokens)
        starts, contexts = inputs.query_starts.tolist(), inputs.context_lengths.tolist()
        packed, tables = self.packed.pop(id(inputs)), inputs.block_tables.tolist()
        known = []
        for index, (row, context) in enumerate(packed):
            computed = tokens[starts[index] : starts[index + 1]]
            read_only = [
                self.drawn[row, at] if token == UNKNOWN else token
                for at, token in enumerate(context[: len(context) - len(computed)])
            ]
            chain, prefix = [], ROOT
            for token in read_only + computed:
                prefix = follow(prefix, token)
                chain.append(prefix)
            known.append(chain)
            for at in range(starts[index], starts[index + 1]):
                for group, of_group in enumerate(slots):
                    before = chain[positions[at] - 1] if positions[at] else ROOT
                    self.kv[of_group[at]] = follow(before, tokens[at]) + group
        for index, chain in enumerate(known):
            first = contexts[index] - (starts[index + 1] - starts[index])
            for group, window in enumerate(self.windows):
                table, size = tables[group][index], self.size
                reach = first_read(window, first)
                read = [self.kv[table[at // size] * size + at % size] for at in range(reach, contexts[index])]
                right = [link + group for link in chain[reach:]]
                assert read == right, (
                    f"row {packed[index][0]} reads wrong KV at {_differs(read, right)} of {len(right)}"
                )
        drawn = []
        for index, at in enumerate(inputs.last_tokens.tolist()):
            forbidden = inputs.sampling.shaping.forbidden.of_row(index)
            drawn.append(next_token(self.kv[slots[0][at]] or 0, tuple(forbidden)))
            self.drawn[int(inputs.rows[index]), positions[at] + 1] = drawn[-1]
        self.last_drawn.update(zip(inputs.rows.tolist(), drawn, strict=True))
        token_ids = np.array(drawn, np.int64)
        return SimpleNamespace(
            ready=self.tokens_computed % 2 == 0,
            token_ids=lambda: token_ids,
            logprobs=lambda: (None, None),
            pooled=lambda: None,
            failed={},
            drafting_seconds=0.0,
            proposed=NO_DRAFTS if inputs.proposing is None else self.propose(inputs, token_ids),
        )

    def propose(self, inputs: Any, token_ids: Any) -> Drafts:
        """Chains that are right for a while, and then may be wrong."""
        step: Any = Verified(inputs, None, None, token_ids, None)  # type: ignore[arg-type]
        counts = step.wanted_within(self.size, 10**6)
        drafts = []
        for at, token, count in zip(
            step.last_hidden, step.next_tokens.tolist(), counts.tolist(), strict=True
        ):
            prefix = self.kv[int(inputs.slots[0, at])]
            for _ in range(count):
                prefix = follow(prefix or 0, token)
                right = next_token(prefix, ())
                token = right if self.tokens_computed % 5 else 7
                drafts.append(token)
        return Drafts(counts, np.array(drafts, np.int32), np.empty(0, np.int32))

    def copy(self, sources: list[int], destinations: list[int]) -> None:
        size = self.size
        read = [self.kv[source * size : source * size + size] for source in sources]
        for destination, content in zip(destinations, read, strict=True):
            self.kv[destination * size : destination * size + size] = content
        self.blocks_copied += len(sources)


def _differs(read: list[Any], chain: list[int]) -> list[int]:
    return [at for at, (one, other) in enumerate(zip(read, chain, strict=True)) if one != other]


class Reader:
    """Stands for the detokenizer: a letter per token, stop strings, numbered batches."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.incoming = Incoming("tokens")
        self.open: dict[int, tuple[OpenOutput, Request, list[int]]] = {}
        self.closed: set[int] = set()
        self.stopped: set[int] = set()

    def receive(self, message: Any, cell: Cell) -> None:
        if not isinstance(message, TokenBatch):
            return
        life = self.incoming.incarnation
        arrival = self.incoming.arrive(message.number, cell.sender_incarnation, message.start)
        if arrival is Arrival.NEXT:
            if self.incoming.incarnation != life:
                self.open, self.closed, self.stopped = {}, set(), set()
            self._take(message, cell)
        if (reply := self.incoming.reply(arrival)) is not None:
            self.play.tell(cell.sender, reply, cell)

    def _take(self, batch: TokenBatch, cell: Cell) -> None:
        for opened in batch.opened:
            assert opened.serial not in self.open, "a request is opened twice"
            request = self.play.requests[(opened.frontend, opened.request_id)]
            self.open[opened.serial] = (opened, request, opened.token_ids.tolist())
        token_ids, position, stopped = batch.token_ids.tolist(), 0, {}
        serials = batch.serials.tolist()
        assert len(set(serials)) == len(serials), "a request has two rows in one batch"
        for index, (serial, count) in enumerate(zip(serials, batch.counts.tolist(), strict=True)):
            tokens, position = token_ids[position : position + count], position + count
            if serial not in self.open:
                assert serial in self.closed, "tokens of a request that was never opened"
                assert serial in self.stopped, "something comes of a request that the scheduler has ended"
                continue
            opened, _, text = self.open[serial]
            finished, start = batch.finished.get(index), len(text)
            for token in tokens:
                text.append(token)
                written = "".join(map(letter, text))
                if len(text) > opened.min_tokens and any(written.endswith(stop) for stop in opened.stop):
                    finished = Finished(reason="stop", num_output_tokens=len(text))
                    stopped[serial] = len(text)
                    self.stopped.add(serial)
                    break
            self._pass_on(opened, start, text[start:], finished, cell)
            if finished is not None:
                del self.open[serial]
                self.closed.add(serial)
        if stopped:
            counts = int32(list(stopped.values()))
            self.play.tell(cell.sender, Stopped(serials=int64(list(stopped)), num_output_tokens=counts), cell)

    def _pass_on(
        self, opened: OpenOutput, start: int, tokens: list[int], finished: Finished | None, cell: Cell
    ) -> None:
        batch = OutputBatch(
            number=0,
            request_ids=(opened.request_id,),
            texts=("",),
            text_starts=int32([0]),
            token_starts=int32([start]),
            counts=int32([len(tokens)]),
            token_ids=int32(tokens),
            finished={0: finished} if finished is not None else {},
        )
        self.play.tell(opened.frontend, batch, cell)


class FrontendStub:
    """Stands for a frontend: takes each token once, and hands its open requests to whoever is new."""

    def __init__(self, play: Play) -> None:
        self.play = play

    def receive(self, message: Any, cell: Cell) -> None:
        if isinstance(message, ActorUp):
            for request in self.play.requests.values():
                if request.submit.frontend == cell.name and not (request.ended or request.aborted):
                    self._submit_again(request, cell)
        elif isinstance(message, OutputBatch):
            request = self.play.requests[(cell.name, message.request_ids[0])]
            if not request.ended:
                self._take(request, message, cell)

    def _submit_again(self, request: Request, cell: Cell) -> None:
        request.resumed = True
        known = self.play.views.get((cell.name, DETOKENIZER), 0)
        behind = Resumption(token_ids=int32(request.tokens), age=0.0, detokenizer=known)
        self.play.tell(SCHEDULER, msgspec.structs.replace(request.submit, resume=behind), cell)

    def _take(self, request: Request, batch: OutputBatch, cell: Cell) -> None:
        start, tokens = int(batch.token_starts[0]), batch.token_ids.tolist()
        have = len(request.tokens) - start
        assert have >= 0, f"tokens {len(request.tokens)} to {start} never came"
        assert tokens[:have] == request.tokens[start : start + len(tokens)], "a token changed"
        request.tokens += tokens[have:]
        self.play.seen["tokens dropped"] += len(tokens[:have])
        if 0 in batch.finished:
            self.play.end(request, batch.finished[0])
            if request.resumed:
                name = request.submit.request_id
                self.play.tell(SCHEDULER, Abort(frontend=cell.name, request_ids=(name,)), cell)


class Cell:
    """Cell as an actor sees it."""

    def __init__(self, play: Play, name: str, incarnation: int) -> None:
        self.node, self.name, self.incarnation = play, name, incarnation
        self.sender, self.sender_incarnation = "", 0

    async def offload(self, call: Any, lane: str = "", threads: int = 1) -> Any:
        return await suspend(Offloaded(call, (self, lane) if threads == 1 else None))

    def spawn(self, coroutine: Any) -> None:
        self.node.go_on(self, coroutine, None)


class Unwatched(Executor):
    """Clock of a play, in which nothing hangs, and which does not wake anybody."""

    async def _watch_steps(self) -> None:
        return


class Offloaded(NamedTuple):
    """Call that a thread is to make, and whose thread: those of one thread come in order."""

    call: Any
    thread: tuple[Cell, str] | None


@coroutine
def suspend(call: Any) -> Any:
    return (yield call)


def finish(coroutine: Any) -> None:
    """Runs a coroutine that waits for nothing but what it offloads."""
    value = None
    try:
        while True:
            value = coroutine.send(value).call()
    except StopIteration:
        return


class Clock:
    """Time passes, if at all, when somebody looks."""

    def __init__(self, seed: int, ticks: float) -> None:
        self._random, self._ticks, self._now = random.Random(seed), ticks, 0.0

    def now(self) -> float:
        self._now += self._ticks * self._random.random()
        return self._now


class Play:
    """The cast, the messages between them, and the requests with their right answers."""

    def __init__(self, seed: int, setting: Setting | None = None) -> None:
        self.setting = setting or Setting()
        self.random = random.Random(seed)
        self.clock = Clock(seed, self.setting.clock_ticks)
        self.lives: Counter[str] = Counter()
        self.cells: dict[str, Cell] = {}
        self.actors: dict[str, Any] = {}
        self.watching: dict[str, set[str]] = defaultdict(set)
        self.views: dict[tuple[str, str], int] = {}
        self.channels: dict[tuple[str, str], deque[tuple[Any, int, int]]] = defaultdict(deque)
        self.work: list[tuple[Cell, Any, Any]] = []  # background tasks, and what they wait for
        self.requests: dict[tuple[str, str], Request] = {}
        self.seen: Counter[str] = Counter()
        self.delivered = 0
        self.paused: PauseMode | None = None  # as the scheduler's next life is to begin
        for name in (*FRONTENDS, EXECUTOR, DETOKENIZER, SCHEDULER, BLOCKS):
            self.start(name)

    # The cast.

    def start(self, name: str) -> None:
        """A new life of an actor."""
        assert name not in self.cells
        self.lives[name] += 1
        cell = self.cells[name] = Cell(self, name, self.lives[name])
        actor = self.actors[name] = self._make(name)
        actor._cell = cell
        if hasattr(actor, "on_start"):
            finish(actor.on_start())
        if name == SCHEDULER:
            actor.core.outputs.stream.credit = self.setting.credit
        if name == EXECUTOR:
            self._note_packing(actor)
        for target in {DETOKENIZER: (SCHEDULER,)}.get(name, KEEPERS if name in FRONTENDS else ()):
            self.watch(target, cell)
        for watcher, targets in self.watching.items():
            if name in targets:
                self._put(SUPERVISOR, watcher, ActorUp(address=name, incarnation=self.lives[name]))

    def _note_packing(self, executor: Any) -> None:
        """Lets the runner know the tokens of each step that is packed."""
        runner, batch = executor._runner, executor.core.batch
        take_in = batch._take_in

        def noting(plan: StepPlan) -> Any:
            inputs = take_in(plan)
            contexts = zip(plan.rows.tolist(), inputs.context_lengths.tolist(), strict=True)
            runner.packed[id(inputs)] = [
                (row, batch._token_ids[row, :length].tolist()) for row, length in contexts
            ]
            return inputs

        batch._take_in = noting

    def _make(self, name: str) -> Any:
        setting = self.setting
        if name == SCHEDULER:
            return Scheduler(
                Scheduler.Options(
                    policy=setting.policy,
                    max_num_seqs=setting.max_num_seqs,
                    max_num_batched_tokens=setting.max_num_batched_tokens,
                    max_model_len=setting.max_model_len,
                    eos_token_ids=(END_TOKEN,),
                    async_scheduling=setting.async_scheduling,
                    short_step_seconds=setting.short_step_seconds,
                    max_steps_per_plan=setting.max_steps_per_plan,
                    speculation=setting.speculation,
                    long_prefill_token_threshold=setting.long_prefill_token_threshold,
                    paused=self.paused,
                )
            )
        if name == BLOCKS:
            return BlockManager(
                BlockManager.Options(
                    enable_prefix_caching=setting.enable_prefix_caching,
                    host_memory=setting.host_blocks * ShadowHost.block_bytes,
                    disk_space=setting.disk_blocks * ShadowHost.block_bytes,
                )
            )
        if name == EXECUTOR:
            options = Executor.Options(
                model="none",
                block_size=setting.block_size,
                max_num_seqs=setting.max_num_seqs,
                max_model_len=setting.max_model_len,
                eos_token_ids=(END_TOKEN,),
            )
            actor = Unwatched(options)
            actor.open_runner = lambda: ShadowRunner(setting)  # type: ignore[method-assign]
            actor._disk = SimpleNamespace(bytes_free=2**40)
            actor.offload_threads = self.random.choice((1, 2))  # as on a CPU, as on a GPU
            return actor
        return Reader(self) if name == DETOKENIZER else FrontendStub(self)

    def kill(self, name: str) -> None:
        """Ends a life: what waits for it is lost, and so is the end of what it was sending."""
        if name not in self.cells:
            return
        self.seen["death of " + name] += 1
        for request in self.requests.values():
            request.orphaned |= name == request.submit.frontend or (name in KEEPERS and request.aborted)
            request.aborted |= request.submit.frontend == name
        if name in (EXECUTOR, BLOCKS) and SCHEDULER in self.cells:
            self.seen[f"death of {name} while {self.phase}"] += 1
        self._collect_counters(name)
        del self.cells[name], self.actors[name]
        for entry in [entry for entry in self.work if entry[0].name == name]:
            self.work.remove(entry)
            entry[1].close()
        self.watching.pop(name, None)
        for key in [key for key in self.views if key[0] == name]:
            del self.views[key]
        for (source, target), channel in self.channels.items():
            if target == name:
                channel.clear()
            elif source == name:
                for _ in range(self.random.randint(0, len(channel))):
                    channel.pop()
        for watcher, targets in self.watching.items():
            if name in targets:
                down = ActorDown(address=name, incarnation=self.lives[name], reason="killed")
                self._put(SUPERVISOR, watcher, down)

    def _collect_counters(self, name: str) -> None:
        if name == SCHEDULER:
            self.seen.update(self.core.count())
        if self.allocation is not None and name in (BLOCKS, EXECUTOR):
            self._collect_pool()
        if name == EXECUTOR:
            runner = self.actors[EXECUTOR]._runner
            self.seen["tokens not known to the host"] += runner.tokens_unknown
            self.seen["blocks copied"] += runner.blocks_copied
            self.seen.update({f"blocks: {way}": count for way, count in runner.host.moved.items()})

    def _collect_pool(self) -> None:
        statistics = self.allocation.statistics()
        self.seen["evictions"] += statistics.evictions
        self.seen["blocks given back"] += statistics.blocks_given_back
        self.seen["blocks restored ahead"] += statistics.blocks_restored_ahead
        self.seen["prefix hits"] += statistics.tokens_hit // self.setting.block_size

    def revive(self) -> None:
        """Starts everybody who is dead."""
        for name in (*CAST, *FRONTENDS):
            if name not in self.cells:
                self.start(name)

    @property
    def core(self) -> Any:
        return self.actors[SCHEDULER].core

    @property
    def phase(self) -> str:
        return (
            "assigning"
            if self.core.planner.exchange
            else "computing"
            if self.core.planner.computing
            else "idle"
        )

    @property
    def allocation(self) -> Any:
        actor = self.actors.get(BLOCKS)
        return actor._allocation if actor is not None else None

    # The node.

    def watch(self, address: str, cell: Cell) -> None:
        address = EXECUTOR if address == "executor/*" else address
        if address in self.watching[cell.name]:
            return
        self.watching[cell.name].add(address)
        if address in self.cells:
            self._put(SUPERVISOR, cell.name, ActorUp(address=address, incarnation=self.lives[address]))

    def tell(self, address: str, message: Any, cell: Cell) -> None:
        freeze(message)
        address = EXECUTOR if address == "executor/*" else address
        known = self.views.get((cell.name, address))
        if address not in self.watching[cell.name]:
            known = self.lives[address] if address in self.cells else None
        if known is not None:
            self.channels[(cell.name, address)].append((message, cell.incarnation, known))

    def _put(self, source: str, target: str, message: Any) -> None:
        self.channels[(source, target)].append((message, 0, self.lives[target]))

    def waiting_channels(self) -> list[tuple[str, str]]:
        return [key for key, channel in self.channels.items() if channel and not self._is_early(*key)]

    def _is_early(self, source: str, target: str) -> bool:
        """Tell whether the next message is of a life that its receiver's node has not heard of yet."""
        watched = source in self.watching.get(target, ())
        return watched and self.channels[(source, target)][0][1] > self.views.get((target, source), 0)

    def deliver(self, key: tuple[str, str] | None = None) -> bool:
        """Hands over the next message of a channel, a random one if none is named."""
        if key is None:
            waiting = [*self.waiting_channels(), *self._next_work()]
            if not waiting:
                return False
            chosen = self.random.choice(waiting)
            if len(chosen) == 3:
                self.work.remove(chosen)
                cell, task, offloaded = chosen
                self.go_on(cell, task, offloaded.call())
                return True
            key = chosen
        source, target = key
        message, incarnation, meant = self.channels[key].popleft()
        cell = self.cells.get(target)
        if cell is None or cell.incarnation != meant or incarnation < self.views.get((target, source), 0):
            return True
        if isinstance(message, ActorUp):
            self.views[(target, message.address)] = message.incarnation
        elif isinstance(message, ActorDown):
            self.views.pop((target, message.address), None)
        self.delivered += 1
        cell.sender, cell.sender_incarnation = source, incarnation
        before = self._before(target, message)
        actor = self.actors[target]
        if isinstance(actor, Reader | FrontendStub):
            actor.receive(message, cell)
        else:
            result = getattr(actor, actor.handlers[type(message)].name)(message)
            if isinstance(result, Coroutine):
                finish(result)
        self._check(target, message, before)
        return True

    def _next_work(self) -> list[tuple[Cell, Any, Any]]:
        """Return for each thread what it was given first."""
        found: dict[Any, tuple[Cell, Any, Any]] = {}
        for entry in self.work:
            found.setdefault(entry[2].thread or id(entry), entry)
        return list(found.values())

    def go_on(self, cell: Cell, task: Any, value: Any) -> None:
        """A background task goes on until it waits for something, which may take a while."""
        with contextlib.suppress(StopIteration):
            self.work.append((cell, task, task.send(value)))

    def drain(self, most: int = 20_000) -> None:
        """Delivers until nothing is on its way: a play at rest does not spin."""
        for _ in range(most):
            if not self.deliver():
                return
        raise AssertionError(f"after {most} more messages there is still no rest")

    # Users.

    def submit(
        self,
        prompt: list[int],
        frontend: str = FRONTENDS[0],
        tenant: str = "",
        priority: int = 0,
        **params: Any,
    ) -> Request | None:
        if frontend not in self.cells:
            return None
        sampling = SamplingParams(temperature=0.0, seed=0, **params)
        right, reason = answer(prompt, sampling, self.setting.max_model_len)
        name = f"request-{len(self.requests)}"
        submit = Submit(
            request_id=name,
            frontend=frontend,
            prompt_token_ids=int32(prompt),
            params=sampling,
            tenant=tenant,
            priority=priority,
        )
        request = self.requests[(frontend, name)] = Request(submit, right, reason)
        request.may_abort = self.paused == "abort"
        self.tell(SCHEDULER, submit, self.cells[frontend])
        return request

    def abort(self, request: Request) -> None:
        submit = request.submit
        if submit.frontend in self.cells:
            request.aborted = True
            known = all(self.views.get((submit.frontend, name)) == self.lives[name] for name in KEEPERS)
            request.orphaned |= not known or not self.cells.keys() >= {*KEEPERS}
            message = Abort(frontend=submit.frontend, request_ids=(submit.request_id,))
            self.tell(SCHEDULER, message, self.cells[submit.frontend])

    # Operators.

    def pause(self, mode: PauseMode | None, *, release: bool = False) -> None:
        """Pause the scheduler, or let it go on, as the lifecycle actor does."""
        self.paused = mode
        for request in self.requests.values():
            request.may_abort |= mode == "abort"
        if SCHEDULER in self.cells:
            message = ResumeScheduling() if mode is None else PauseScheduling(mode=mode, release=release)
            self._put(SUPERVISOR, SCHEDULER, message)

    def reset_prefixes(self) -> None:
        """Have all cached prefixes forgotten."""
        if BLOCKS in self.cells:
            self._put(SUPERVISOR, BLOCKS, ResetPrefixCache(below=self.random.random() < 0.5))
            self.seen["resets"] += 1

    def end(self, request: Request, finished: Finished) -> None:
        """A request's terminal message."""
        request.ends.append(finished)
        self.seen["ended by " + finished.reason] += 1
        right = request.right
        if finished.reason in ("stop", "length"):
            assert request.reason == finished.reason, f"ended by {finished.reason}, not {request.reason}"
            assert request.tokens == right, f"{request.tokens} came, {right} is right"
        else:
            allowed = (
                request.aborted or request.may_abort
                if finished.reason == "abort"
                else request.reason == "error"
            )
            assert allowed, f"ended by {finished.reason} without a cause: {finished.message}"
            assert request.tokens == right[: len(request.tokens)], "wrong tokens before the end"
        if not (request.resumed and request.aborted):
            assert finished.num_output_tokens == len(request.tokens), "the count of tokens is wrong"

    # What must always hold.

    def _before(self, target: str, message: Any) -> Any:
        if isinstance(message, StepPlan):
            self._check_plan(message)
        if target != SCHEDULER:
            return None
        if isinstance(message, Abort):
            for name in message.request_ids:
                self._note_abort(self.core.requests.named(message.frontend, name))
        return set(self.core.requests.running)

    def _note_abort(self, request: Any) -> None:
        if request is None:
            return
        self.seen[f"abort of {request.state.value} while {self.phase}"] += 1
        self.seen["abort in the last step"] += in_last_step(self.core, request)

    def _check_plan(self, plan: StepPlan) -> None:
        rows = plan.rows.tolist()
        assert len(set(rows)) == len(rows), "a row is computed twice in one step"
        assert plan.num_tokens.sum() <= self.setting.max_num_batched_tokens, "the budget is exceeded"
        assert rows, "a plan computes nothing"
        assert max(rows) < self.setting.max_num_seqs, "there is no such row"
        assert (plan.num_tokens > 0).all(), "a row computes nothing"

    def _check(self, target: str, message: Any, before: Any) -> None:
        if target == SCHEDULER:
            core = self.core
            core.check_integrity()
            if core.is_at_rest:
                self.seen[f"at rest with {core.paused}"] += 1
                self.seen["held at rest"] += len(core.requests)
            assert len(core.requests.running) <= self.setting.max_num_seqs, "too many requests run"
            if isinstance(message, Abort):
                for name in message.request_ids:
                    assert core.requests.named(message.frontend, name) is None, (
                        "an aborted request is still there"
                    )
            if isinstance(message, Stopped):
                assert not any(map(core.requests.find, message.serials.tolist())), "a stop was passed over"
            if isinstance(message, Assigned):
                self._check_order(set(core.requests.running) - before)
        elif target == BLOCKS and self.allocation is not None:
            self.allocation.check_integrity()
            self._check_shared()

    def _check_order(self, admitted: set[Any]) -> None:
        held = self.core.requests.waiting._held
        waiting = [
            request.key
            for request in self.core.requests
            if request.state is State.WAITING and request.serial not in held
        ]
        in_order = self.setting.policy == "fcfs" and self.setting.long_prefill_token_threshold is None
        alone = any(map(is_suspect, admitted))  # for which even those make room that have just been survivor
        # With another policy one may have come meanwhile; a long prompt waits for another.
        if admitted and waiting and in_order and not alone:
            last = max(request.key for request in admitted)
            assert last < min(waiting), "a request was overtaken"

    def _check_shared(self) -> None:
        """A block of two sequences is a full one, in both at the same place, and was named."""
        holders: dict[int, list[tuple[int, bytes | None]]] = defaultdict(list)
        for sequence in self.allocation._sequences.values():
            for place, block in enumerate(sequence.blocks):
                index = place // len(self.setting.windows)
                name = sequence.names[index] if index < sequence.named else None
                if block >= 0:
                    holders[block].append((place, name))
        for block, places in holders.items():
            if len(places) > 1:
                assert len(set(places)) == 1 and places[0][1] is not None, f"block {block} has two owners"

    def check_rest(self) -> None:
        """Check that nothing is left of anything."""
        for request in self.requests.values():
            assert request.ended, f"{request.submit.request_id} never ended"
        core, allocation = self.core, self.allocation
        requests, waiting = core.requests, core.requests.waiting
        assert not requests._by_name and not len(requests), "a request is known for ever"
        assert not (core.planner.exchange or core.planner.computing), "a step is at hand at rest"
        assert not requests.block_updates.freed, "the block manager is not told what is free"
        assert not len(waiting) and not waiting.num_tokens
        assert not any(waiting._queue._short._requests.values()), "somebody stays in the queue"
        assert not len(requests.running)
        assert sorted(requests.running.free_rows) == list(range(self.setting.max_num_seqs)), "rows are lost"
        outputs = core.outputs
        for name in ("_sampled", "_resent", "_finished", "_facts"):
            assert not getattr(outputs, name), f"{name} of the outputs holds something at rest"
        assert not outputs.stream.unacknowledged
        assert not len(allocation), "a sequence holds blocks at rest"
        assert allocation.pool.num_free == allocation.pool.num_blocks, "blocks are lost"
        reader = self.actors[DETOKENIZER]
        former = reader.incoming.incarnation < self.lives[SCHEDULER]  # forgotten at the next one's first word
        assert former or not reader.open, "the detokenizer holds requests at rest"


def in_last_step(core: SchedulerCore, request: Any) -> bool:
    """Tell whether the token that is being drawn ends the request by its length."""
    pending = 0 if request.row is None else int(core.requests.running._num_pending[request.row])
    return bool(pending) and request.num_tokens + pending == request.max_total


class Script:
    """A seeded crowd of users and accidents for a play."""

    def __init__(self, seed: int, setting: Setting, *, hostile: bool, operated: bool = False) -> None:
        self.play = Play(seed, setting)
        self.random = random.Random(seed + 1)
        self.hostile, self.operated = hostile, operated
        self.documents = [self._tokens(setting.max_model_len - 8) for _ in range(4)]

    def _tokens(self, count: int) -> list[int]:
        return [self.random.randrange(VOCABULARY) for _ in range(count)]

    def submit(self) -> None:
        chance = self.random.random
        longest = self.play.setting.max_model_len
        prompt = self.random.choice(self.documents)[: self.random.randint(0, longest - 8)]
        prompt = prompt + self._tokens(self.random.randint(1, 6))
        if chance() < 0.01:
            prompt = self._tokens(self.random.choice([0, longest, longest + 3]))
        max_tokens = self.random.choice([1, 2, 5, 12, 24, None])
        final = self.play.setting.share_final and chance() < self.play.setting.share_final
        least = self.random.randint(0, min(6, max_tokens or 6)) if chance() < 0.2 else 0
        self.play.submit(
            prompt,
            self.random.choice(FRONTENDS),
            tenant=self.random.choice(["", "one", "another"]),
            priority=self.random.randint(-2, 2),
            max_tokens=max_tokens,
            min_tokens=least,
            ignore_eos=chance() < 0.5,
            stop_token_ids=(3, 9) if chance() < 0.15 else (),
            stop=tuple(map(letter, self.random.sample(range(VOCABULARY), 3))) if chance() < 0.3 else (),
            output_kind=RequestOutputKind.FINAL_ONLY if final else RequestOutputKind.CUMULATIVE,
            frequency_penalty=0.5
            if final and chance() < 0.1
            else 0.0,  # which the model here does not look at
        )

    def abort(self) -> None:
        """Abort a request of a random kind, so that each kind is met often."""
        play = self.play
        if SCHEDULER not in play.cells:
            return
        kinds: dict[Any, list[Any]] = defaultdict(list)
        for request in play.core.requests:
            decoding = not play.core.requests.running.is_prefilling(request)
            last = in_last_step(play.core, request)
            kinds[(request.state, bool(request.num_preemptions), decoding, last)].append(request)
        if not kinds:
            return
        rare = [kind for kind in kinds if kind[3]]
        rare = rare or [kind for kind in kinds if kind[1] and kind[0] is State.WAITING]
        kind = self.random.choice(rare if rare and self.random.random() < 0.7 else list(kinds))
        chosen = self.random.choice(kinds[kind])
        play.abort(play.requests[(chosen.frontend, chosen.request_id)])
        channel = (chosen.frontend, SCHEDULER)
        if self.random.random() < 0.8:
            while play.channels[channel]:
                play.deliver(channel)

    def operate(self) -> None:
        """An operator pauses, lets go on, or resets caches."""
        modes: tuple[PauseMode, ...] = ("keep", "wait", "wait", "abort")  # a wait is seldom over in time
        match self.random.choice(("pause", "resume", "resume", "reset")):
            case "pause":
                self.play.pause(self.random.choice(modes), release=self.random.random() < 0.5)
            case "resume":
                self.play.pause(None)
            case _:
                self.play.reset_prefixes()

    def accident(self) -> None:
        play = self.play
        dead = [name for name in (*CAST, *FRONTENDS) if name not in play.cells]
        if dead and self.random.random() < 0.7:
            play.start(self.random.choice(dead))
        elif self.random.random() < 0.15:
            play.kill(self.random.choice((*CAST, *CAST, *FRONTENDS)))

    def run(self, num_requests: int) -> Counter[str]:
        """Plays until so many requests have come and all have ended; returns what happened."""
        play, chance = self.play, self.random.random
        while len(play.requests) < num_requests:
            num_open = sum(not request.ended for request in list(play.requests.values())[-60:])
            if chance() < (0.05 if num_open < 12 else 0.005):
                for _ in range(self.random.randint(1, 4)):
                    self.submit()
            if chance() < 0.03:
                self.abort()
            if self.hostile and chance() < 0.01:
                self.accident()
            if self.operated and chance() < 0.01:
                self.operate()
            if not play.deliver():
                self.submit()
                if self.hostile:
                    play.revive()
        play.revive()
        play.pause(None)
        play.drain()
        play.check_rest()
        play._collect_counters(SCHEDULER)
        play._collect_counters(EXECUTOR)
        return play.seen


@pytest.fixture
def make_play() -> type[Play]:
    return Play


@pytest.fixture
def make_script() -> type[Script]:
    return Script


@pytest.fixture
def make_setting() -> type[Setting]:
    return Setting
