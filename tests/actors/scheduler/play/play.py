"""A whole play without a network, a clock or a model: the real scheduler, block manager and executor.

Messages are delivered in any order that is FIFO per sender and receiver. What must always hold is checked after
every message.
"""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from pageant.actors.blocks.actor import BlockManager
from pageant.actors.executor.actor import Executor
from pageant.actors.scheduler.actor import Scheduler
from pageant.protocol.arrays import int32
from pageant.protocol.lifecycle import PauseMode, PauseScheduling, ResetPrefixCache, ResumeScheduling
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Abort, Submit
from pageant.protocol.stepping import StepPlan
from pageant.protocol.supervision import ActorDown, ActorUp
from tests.actors.scheduler.play.invariants import Invariants
from tests.actors.scheduler.play.request import Request
from tests.actors.scheduler.play.setting import (
    BLOCKS,
    CAST,
    DETOKENIZER,
    END_TOKEN,
    EXECUTOR,
    FRONTENDS,
    KEEPERS,
    SCHEDULER,
    SUPERVISOR,
    Setting,
)
from tests.actors.scheduler.play.shadow_model import ShadowHost, ShadowRunner, answer
from tests.actors.scheduler.play.stage import Cell, Stage, finish
from tests.actors.scheduler.play.stand_ins import FrontendStub, Reader


class Unwatched(Executor):
    """The executor without its watch over steps that hang: no step of a play hangs."""

    async def _watch_steps(self) -> None:
        return


class Play(Stage):
    """Real actors and their stand-ins on a stage, with the users and operators who send them requests."""

    def __init__(self, seed: int, setting: Setting | None = None) -> None:
        super().__init__(seed, setting or Setting())
        self.invariants = Invariants(self)
        self.delivered = 0
        self.paused: PauseMode | None = None  # how the scheduler's next life begins
        for name in (*FRONTENDS, EXECUTOR, DETOKENIZER, SCHEDULER, BLOCKS):
            self.start(name)

    def start(self, name: str) -> None:
        """Begin a new life of an actor, and tell it to those who watch its address."""
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
        """Give the runner the tokens of each step that the executor packs."""
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
        match name:
            case "scheduler":
                return self._make_scheduler()
            case "blocks":
                return self._make_block_manager()
            case "executor/0":
                return self._make_executor()
            case "detokenizer":
                return Reader(self)
        return FrontendStub(self)

    def _make_scheduler(self) -> Scheduler:
        setting = self.setting
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

    def _make_block_manager(self) -> BlockManager:
        setting = self.setting
        return BlockManager(
            BlockManager.Options(
                enable_prefix_caching=setting.enable_prefix_caching,
                host_memory=setting.host_blocks * ShadowHost.block_bytes,
                disk_space=setting.disk_blocks * ShadowHost.block_bytes,
            )
        )

    def _make_executor(self) -> Executor:
        setting = self.setting
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

    def kill(self, name: str) -> None:
        """End a life. Messages to it are lost, and so are some of the last that it sent."""
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
        """Start every actor and frontend that is dead."""
        for name in (*CAST, *FRONTENDS):
            if name not in self.cells:
                self.start(name)

    def deliver(self, key: tuple[str, str] | None = None) -> bool:
        """Deliver the next message of a channel, or of a random one; return False if nothing waits."""
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
        ran = self.invariants.before(target, message)
        actor = self.actors[target]
        if isinstance(actor, Reader | FrontendStub):
            actor.receive(message, cell)
        else:
            result = getattr(actor, actor.handlers[type(message)].name)(message)
            if isinstance(result, Coroutine):
                finish(result)
        self.invariants.after(target, message, ran)
        return True

    def drain(self, most: int = 20_000) -> None:
        """Deliver until no message waits; raise AssertionError if the actors never come to rest."""
        for _ in range(most):
            if not self.deliver():
                return
        raise AssertionError(f"after {most} more messages there is still no rest")

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

    def pause(self, mode: PauseMode | None, *, release: bool = False) -> None:
        """Pause the scheduler, or let it go on, as the lifecycle actor does."""
        self.paused = mode
        for request in self.requests.values():
            request.may_abort |= mode == "abort"
        if SCHEDULER in self.cells:
            message = ResumeScheduling() if mode is None else PauseScheduling(mode=mode, release=release)
            self._put(SUPERVISOR, SCHEDULER, message)

    def reset_prefixes(self) -> None:
        """Have the block manager forget all cached prefixes."""
        if BLOCKS in self.cells:
            self._put(SUPERVISOR, BLOCKS, ResetPrefixCache(below=self.random.random() < 0.5))
            self.seen["resets"] += 1
