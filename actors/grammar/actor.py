"""The grammar's shell: compiles what is asked for off the loop, and answers each step's tokens with masks."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import msgspec

from pageant.actors.grammar.compiling import Compiler
from pageant.actors.grammar.core import Guides, Masks, Opening
from pageant.actors.grammar.errors import GrammarError, GrammarKills
from pageant.actors.grammar.isolated import IsolatedTrial
from pageant.actors.grammar.masking import DraftMasking
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.runtime.address import SUPERVISOR
from pageant.actors.runtime.isolation import WALL_FACTOR
from pageant.protocol.arrays import int64
from pageant.protocol.errors import PageantError
from pageant.protocol.guiding import (
    CompileGrammar,
    GrammarCompiled,
    GrammarRefused,
    GuidesLost,
    GuideStep,
    OpenGuide,
    TokenMasks,
)
from pageant.protocol.roles import GRAMMAR
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.protocol.supervision import ActorDown, ActorUp, AmendActor

if TYPE_CHECKING:
    from llguidance import LLMatcher

log = logging.getLogger("pageant.grammar")

PREPARE_AFTER_SECONDS = 1.0  # of this actor's start: the rest of the topology starts meanwhile
REMEMBER_SECONDS = 5.0
COST_DECAY = 0.8  # of what a mask costs, with each step that takes less

P = ParamSpec("P")
R = TypeVar("R")


class Backend(Protocol):
    """Compiles grammars for one vocabulary; may be used by several threads. See `Compiler`."""

    def compile(self, asked: StructuredOutputsParams) -> Any:
        """Return a matcher at the beginning, to be copied. Raises GrammarError."""


@dataclass
class _Followed:
    """An executor's sequences, of its life `epoch`, and by their numbers those that wait for their grammars.

    `cost` is what a step takes for each mask that is made, in seconds; `away` are calls that another thread has.
    """

    epoch: int
    guides: Guides
    waiting: dict[int, OpenGuide] = field(default_factory=dict)
    cost: float = math.inf
    away: int = 0

    def took(self, seconds: float, made: int) -> None:
        """A step has been computed, with so many masks."""
        cost = seconds / max(1, made)
        self.cost = cost if math.isinf(self.cost) else max(cost, COST_DECAY * self.cost)


class Grammar(Actor):
    """Follows the sequences of every executor along their grammars."""

    role = GRAMMAR
    offload_threads = 2  # so that one costly grammar does not hold up the others
    isolates = True
    """Whether sources can be compiled in a process of their own first, which is for native code."""

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the grammar actor.

        Attributes:
            model: the checkpoint's folder.
            tokenizer: the folder of the tokenizer; None is the checkpoint's.
            vocab_size, eos_token_ids: the model's.
            compile_seconds_max: a source that takes more processor time to compile is refused; without `isolate`, one
                that takes longer by the clock.
            isolate: compile each source in a process of its own first, which alone ends where the compiler does.
            killers: sources that ended such a process: why, by their hashes. The actor sets it for its next life.
            cache_size: compiled grammars that are kept, those in use apart.
            mask_threads: that a step's masks are spread over, by grammar: those of one grammar share its lexer.
            loop_seconds_max: a step's masks that are expected to take no longer are computed on the event loop, which
                saves four changes of threads; 0 is never.
        """

        model: str
        tokenizer: str | None = None
        vocab_size: int
        eos_token_ids: tuple[int, ...] = ()
        compile_seconds_max: float = 10.0
        isolate: bool = True
        killers: dict[str, str] = msgspec.field(default_factory=dict)
        cache_size: int = 128
        mask_threads: int = 1
        loop_seconds_max: float = 0.002

        def __post_init__(self) -> None:
            for name in ("cache_size", "mask_threads", "compile_seconds_max"):
                if getattr(self, name) <= 0:
                    raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
            if self.loop_seconds_max < 0:
                raise ValueError(f"loop_seconds_max is {self.loop_seconds_max}; expected at least 0")

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._loading = asyncio.Lock()
        self._threads = asyncio.Semaphore(self.offload_threads)
        self._backend: Backend | None = None
        self._trial: IsolatedTrial | None = None
        if options.isolate and self.isolates:
            model = Path(options.tokenizer or options.model), options.vocab_size, options.eos_token_ids
            self._trial = IsolatedTrial(*model, options.compile_seconds_max, options.killers)
        self._compiled: OrderedDict[StructuredOutputsParams, LLMatcher] = OrderedDict()
        self._compiling: dict[StructuredOutputsParams, asyncio.Future[LLMatcher | GrammarError]] = {}
        self._followed: dict[str, _Followed] = {}  # by executor

    def open_backend(self) -> Backend:
        """Read the vocabulary. Called once, in a thread, when the first grammar is compiled."""
        options = self.options
        path = Path(options.tokenizer or options.model)
        return Compiler.from_checkpoint(path, options.vocab_size, options.eos_token_ids)

    def make_masking(self) -> DraftMasking | None:
        """Return what asks the backend's matchers for masks; None for llguidance's."""
        return None

    async def on_start(self) -> None:
        if self._trial is not None:
            self.spawn(self._prepare(self._trial))

    async def _prepare(self, trial: IsolatedTrial) -> None:
        """Have a process at hand for the first source, without a part in the topology's own start."""
        await asyncio.sleep(PREPARE_AFTER_SECONDS)
        try:
            await self.offload(trial.prepare)
        except OSError as error:
            log.warning("grammars will not be compiled until a process can be started: %s", error)

    async def on_stop(self) -> None:
        self._end_trial()

    def on_crash(self, error: BaseException) -> None:
        self._end_trial()

    def _end_trial(self) -> None:
        if self._trial is not None:
            self._trial.close()

    @receives(concurrent=True)
    async def compile(self, request: CompileGrammar) -> GrammarCompiled | GrammarRefused:
        """Answer whether a grammar can be followed; it is ready then."""
        try:
            await self._grammar(request.structured_outputs)
        except GrammarError as error:
            return GrammarRefused(reason=str(error))
        return GrammarCompiled()

    async def _grammar(self, asked: StructuredOutputsParams) -> LLMatcher:
        """The compiled grammar, made once however many ask for it.

        Raises:
            GrammarError: it cannot be followed.
        """
        found = self._compiled.get(asked)
        if found is not None:
            self._compiled.move_to_end(asked)
            return found
        outcome = self._compiling.get(asked)
        if outcome is None:
            outcome = self._compiling[asked] = asyncio.get_running_loop().create_future()
            self.spawn(self._compile(asked, outcome))
        made = await asyncio.shield(outcome)
        if isinstance(made, GrammarError):
            raise made
        return made

    async def _compile(
        self, asked: StructuredOutputsParams, outcome: asyncio.Future[LLMatcher | GrammarError]
    ) -> None:
        try:
            backend, limit = await self._load(), self.options.compile_seconds_max
            # With a trial, a source is compiled twice, and the trial itself ends what takes too much processor time.
            most = limit if self._trial is None else 2 * WALL_FACTOR * limit
            await self._threads.acquire()  # the limit is for what it takes itself, not for what is before it
            working: asyncio.Future[LLMatcher | GrammarError] = asyncio.get_running_loop().create_future()
            self.spawn(self._work(backend, asked, working))
            made = await asyncio.wait_for(asyncio.shield(working), most)
        except TimeoutError:
            made = GrammarError(f"it takes more than {limit:g} seconds to compile")
        except GrammarError as error:
            made = error
        if not isinstance(made, GrammarError):
            self._compiled[asked] = made
            while len(self._compiled) > self.options.cache_size:
                self._compiled.popitem(last=False)
        outcome.set_result(made)
        del self._compiling[asked]

    async def _work(
        self,
        backend: Backend,
        asked: StructuredOutputsParams,
        working: asyncio.Future[LLMatcher | GrammarError],
    ) -> None:
        """Compiles in a thread, which is taken for as long as that takes, whoever still waits for it."""
        try:
            if self._trial is not None:
                await self.offload(self._trial.check, asked)
            working.set_result(await self.offload(backend.compile, asked))
        except GrammarKills as error:
            await self._remember_killers()
            working.set_result(error)
        except GrammarError as error:
            working.set_result(error)
        finally:
            self._threads.release()

    async def _remember_killers(self) -> None:
        """Have the next life of this actor know the sources that end processes."""
        assert self._trial is not None, "a process has ended"
        options = json.dumps({"killers": self._trial.killers})
        order = AmendActor(name=self.name, options=options)
        try:
            await self.ask(SUPERVISOR, order, timeout=REMEMBER_SECONDS, again=True)
        except PageantError as error:  # this life knows them all the same
            log.warning("a grammar that ends processes is known until this actor ends: %s", error)

    async def _load(self) -> Backend:
        async with self._loading:
            if self._backend is None:
                self._backend = await self.offload(self.open_backend)
            return self._backend

    @receives
    async def step(self, message: GuideStep) -> None:
        """An executor's step: what follows is computed at once, since its next step waits for it."""
        executor = self.sender
        followed = self._followed.get(executor)
        if followed is None or followed.epoch < message.epoch:
            self.watch(executor)
            model = self.options.vocab_size, self.options.eos_token_ids
            guides = Guides(*model, self.options.mask_threads, self.make_masking())
            followed = self._followed[executor] = _Followed(message.epoch, guides)
        closed = message.closed.tolist()
        for number in closed:
            followed.waiting.pop(number, None)
        opened = self._opened_now(executor, followed, message.opened)
        if closed or opened or len(message.guides):
            columns = message.guides.tolist(), message.positions.tolist(), message.token_ids.tolist()
            self._answer(executor, followed, await self._step(followed, closed, opened, columns))
        if len(message.drafting):
            drafts = message.drafting, message.draft_positions, message.draft_counts, message.draft_ids
            await self._answer_drafts(executor, followed, *(column.tolist() for column in drafts))

    def _opened_now(self, executor: str, followed: _Followed, opened: Sequence[OpenGuide]) -> list[Opening]:
        """New sequences whose grammars are there; the others wait for theirs."""
        begun = []
        for one in opened:
            matcher = self._compiled.get(one.structured_outputs)
            if matcher is None:
                followed.waiting[one.guide] = one
                self.spawn(self._open_later(executor, followed, one))
            else:
                begun.append(_opening(one, matcher))
        return begun

    async def _open_later(self, executor: str, followed: _Followed, opened: OpenGuide) -> None:
        """Open a guide after its grammar is compiled again: after a restart, or where it was forgotten here."""
        failed, begun = {}, []
        try:
            begun.append(_opening(opened, await self._grammar(opened.structured_outputs)))
        except GrammarError as error:
            failed[opened.guide] = str(error)
        if self._followed.get(executor) is not followed or followed.waiting.get(opened.guide) is not opened:
            return  # it is over, or was opened again
        del followed.waiting[opened.guide]
        masks = await self._step(followed, (), begun)
        self._answer(executor, followed, masks._replace(failed={**masks.failed, **failed}))

    async def _step(
        self,
        followed: _Followed,
        closed: Sequence[int],
        opened: Sequence[Opening],
        columns: tuple[list[int], list[int], list[int]] = ([], [], []),
    ) -> Masks:
        """See `Guides.step`. Another thread computes it if it is, or may be, too much for the loop."""
        expected = followed.cost * len(columns[0])
        here = not opened and not followed.away and expected < self.options.loop_seconds_max

        def step() -> Masks:
            began = self.clock.now()
            masks = followed.guides.step(closed, opened, *columns, here=here)
            followed.took(self.clock.now() - began, masks.made)
            return masks

        return step() if here else await self._follow(followed, step)

    async def _follow(
        self, followed: _Followed, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a call in the thread that has what is too much for the loop, one call after another."""
        followed.away += 1
        try:
            return await self.offload_beside("masks", function, *args, **kwargs)
        finally:
            followed.away -= 1

    async def _answer_drafts(self, executor: str, followed: _Followed, *drafts: list[int]) -> None:
        """The masks along drafts. Who is not where they begin has none: they are not verified."""
        self._answer(executor, followed, await self._follow(followed, followed.guides.draft_masks, *drafts))

    def _answer(self, executor: str, followed: _Followed, masks: Masks) -> None:
        if masks.lost:
            self.tell(executor, GuidesLost(epoch=followed.epoch, guides=int64(masks.lost)))
        if len(masks.guides) or masks.failed:
            self._tell_masks(executor, followed.epoch, masks)

    def _tell_masks(self, executor: str, epoch: int, masks: Masks) -> None:
        self.tell(
            executor,
            TokenMasks(
                epoch=epoch,
                guides=masks.guides,
                positions=masks.positions,
                ahead=masks.ahead,
                bits=masks.bits,
                failed=masks.failed,
            ),
        )

    @receives
    def peer_up(self, event: ActorUp) -> None:
        """An executor begins with its first guide."""

    @receives
    def peer_down(self, event: ActorDown) -> None:
        """Forget a peer's sequences, which are gone with it."""
        followed = self._followed.get(event.address)
        if followed is not None and followed.epoch <= event.incarnation:
            del self._followed[event.address]


def _opening(opened: OpenGuide, matcher: LLMatcher) -> Opening:
    return Opening(opened.guide, matcher, opened.position, opened.token_ids.tolist(), opened.ignore_eos)
