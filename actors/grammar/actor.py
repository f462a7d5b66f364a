"""The grammar's shell: compiles what is asked for off the loop, and answers each step's tokens with masks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from pageant.actors.grammar.compiling import Compiler
from pageant.actors.grammar.core import Guides, Masks, Opening
from pageant.actors.grammar.errors import GrammarError
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.protocol.arrays import int64
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
from pageant.protocol.supervision import ActorDown, ActorUp

if TYPE_CHECKING:
    from llguidance import LLMatcher

P = ParamSpec("P")
R = TypeVar("R")
Key = tuple[str, int]  # an executor, and its guide


class Grammar(Actor):
    """Follows the sequences of every executor along their grammars."""

    role = GRAMMAR
    offload_threads = 2  # so that one costly grammar does not hold up the others

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the grammar actor.

        Attributes:
            model: the checkpoint's folder, for its tokenizer.
            vocab_size, eos_token_ids: the model's.
            compile_seconds_max: what takes longer to compile is refused.
            cache_size: compiled grammars that are kept, those in use apart.
            threads: that a step's masks are spread over, by grammar.
        """

        model: str
        vocab_size: int
        eos_token_ids: tuple[int, ...] = ()
        compile_seconds_max: float = 10.0
        cache_size: int = 128
        threads: int = 2

        def __post_init__(self) -> None:
            for name in ("cache_size", "threads", "compile_seconds_max"):
                if getattr(self, name) <= 0:
                    raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._loading = asyncio.Lock()
        self._compiler: Compiler | None = None
        self._compiled: OrderedDict[StructuredOutputsParams, LLMatcher] = OrderedDict()
        self._compiling: dict[StructuredOutputsParams, asyncio.Future[LLMatcher | GrammarError]] = {}
        self._guides: Guides | None = None
        self._positions: dict[Key, int] = {}  # of each guide's next token
        self._opening: dict[Key, OpenGuide] = {}  # that wait for their grammars
        self._epochs: dict[str, int] = {}  # by executor: whose guides these are

    @receives(concurrent=True)
    async def compile(self, request: CompileGrammar) -> GrammarCompiled | GrammarRefused:
        """Whether this can be followed; it is ready then."""
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
            compiler, limit = await self._load(), self.options.compile_seconds_max
            matcher = await asyncio.wait_for(self.offload(compiler.compile, asked), limit)
        except TimeoutError:
            outcome.set_result(GrammarError(f"it takes more than {limit:g} seconds to compile"))
        except GrammarError as error:
            outcome.set_result(error)
        else:
            self._compiled[asked] = matcher
            while len(self._compiled) > self.options.cache_size:
                self._compiled.popitem(last=False)
            outcome.set_result(matcher)
        del self._compiling[asked]

    async def _load(self) -> Compiler:
        """Reads the vocabulary, when the first grammar is compiled."""
        options = self.options
        async with self._loading:
            if self._compiler is None:
                path, size, ends = Path(options.model), options.vocab_size, options.eos_token_ids
                self._compiler = await self.offload(Compiler.from_checkpoint, path, size, ends)
                self._guides = Guides(size, ends, options.threads)
            return self._compiler

    @receives
    async def step(self, message: GuideStep) -> None:
        """An executor's step: what follows is computed at once, since its next step waits for it."""
        executor = self.sender
        known = self._epochs.get(executor)
        if known is None or known < message.epoch:
            self.watch(executor)
            self._forget(executor)
            self._epochs[executor] = message.epoch
        for guide in message.closed.tolist():
            self._close((executor, guide))
        opened = self._opened_now(executor, message)
        drawn = self._drawn(executor, message)
        wanted = dict.fromkeys([*(one.key for one in opened), *(key for key, _ in drawn)])
        if wanted:
            await self._answer(executor, message.epoch, list(wanted), opened, drawn)
        await self._answer_drafts(executor, message)

    def _opened_now(self, executor: str, message: GuideStep) -> list[Opening]:
        """New sequences whose grammars are there; the others wait for theirs."""
        begun = []
        for opened in message.opened:
            matcher = self._compiled.get(opened.structured_outputs)
            key = (executor, opened.guide)
            if matcher is None:
                self._opening[key] = opened
                self.spawn(self._open_later(key, opened, message.epoch))
            else:
                begun.append(self._opened(key, opened, matcher))
        return begun

    def _opened(self, key: Key, opened: OpenGuide, matcher: LLMatcher) -> Opening:
        self._positions[key] = opened.position
        return Opening(key, matcher, opened.token_ids.tolist(), opened.ignore_eos)

    def _drawn(self, executor: str, message: GuideStep) -> list[tuple[Key, int]]:
        """The tokens that were drawn, of the sequences that stand where these come."""
        drawn, lost = [], []
        columns = message.guides.tolist(), message.positions.tolist(), message.token_ids.tolist()
        for guide, position, token in zip(*columns, strict=True):
            key = (executor, guide)
            if self._positions.get(key) == position:
                self._positions[key] = position + 1
                drawn.append((key, token))
            else:
                lost.append(guide)
        if lost:
            self.tell(executor, GuidesLost(epoch=message.epoch, guides=int64(lost)))
        return drawn

    async def _open_later(self, key: Key, opened: OpenGuide, epoch: int) -> None:
        """After a restart the grammars are compiled again, and those that were forgotten here."""
        failure = None
        try:
            matcher = await self._grammar(opened.structured_outputs)
        except GrammarError as error:
            failure = str(error)
        if self._opening.get(key) is not opened:
            return  # it is over, or was opened again
        del self._opening[key]
        executor, guide = key
        if failure is None:
            await self._answer(executor, epoch, [key], [self._opened(key, opened, matcher)], [])
            if key not in self._positions and self._guides is not None:
                self._guides.close(key)  # it was closed before it was open
        else:
            self._tell_masks(executor, epoch, [], [], [], np.zeros((0, 0), np.int32), {guide: failure})

    async def _answer(
        self, executor: str, epoch: int, keys: list[Key], opened: list[Opening], drawn: list[tuple[Key, int]]
    ) -> None:
        """The masks of sequences, after what is new of them."""
        assert self._guides is not None, "a grammar has been compiled"
        positions = [self._positions[key] for key in keys]
        bits, failures = await self._follow(self._guides.step, opened, drawn, keys)
        failed = {keys[row][1]: failure for row, failure in failures.items()}
        if failures:
            positions = [one for row, one in enumerate(positions) if row not in failures]
            keys = [key for row, key in enumerate(keys) if row not in failures]
            bits = np.delete(bits, list(failures), axis=0)
        self._tell_masks(executor, epoch, keys, positions, [0] * len(keys), bits, failed)

    async def _follow(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """In the one thread that knows where sequences stand."""
        return await self.offload_beside("masks", function, *args, **kwargs)

    async def _answer_drafts(self, executor: str, message: GuideStep) -> None:
        """The masks along drafts. Who is not where they begin has none: they are not verified."""
        columns = message.drafting.tolist(), message.draft_positions.tolist(), message.draft_counts.tolist()
        drafts: list[tuple[Key, list[int]]] = []
        first = 0
        for guide, position, count in zip(*columns, strict=True):
            if self._positions.get((executor, guide)) == position:
                drafts.append(((executor, guide), message.draft_ids[first : first + count].tolist()))
            first += count
        if not drafts:
            return
        assert self._guides is not None, "there are guides"
        found = await self._follow(self._guides.draft_masks, drafts)
        places = [(key, ahead) for key, bits in found.items() for ahead in range(len(bits))]
        if places:
            keys, ahead = zip(*places, strict=True)
            positions = [self._positions[key] + count for key, count in places]
            bits = np.concatenate(list(found.values()))
            self._tell_masks(executor, message.epoch, keys, positions, ahead, bits, {})

    def _tell_masks(
        self,
        executor: str,
        epoch: int,
        keys: Sequence[Key],
        positions: Sequence[int],
        ahead: Sequence[int],
        bits: Masks,
        failed: dict[int, str],
    ) -> None:
        self.tell(
            executor,
            TokenMasks(
                epoch=epoch,
                guides=int64([guide for _, guide in keys]),
                positions=int64(positions),
                ahead=int64(ahead),
                bits=bits,
                failed=failed,
            ),
        )

    def _close(self, key: Key) -> None:
        self._opening.pop(key, None)
        if self._positions.pop(key, None) is not None and self._guides is not None:
            self._guides.close(key)

    def _forget(self, executor: str) -> None:
        for key in [key for key in (*self._positions, *self._opening) if key[0] == executor]:
            self._close(key)

    @receives
    def peer_up(self, event: ActorUp) -> None:
        """An executor begins with its first guide."""

    @receives
    def peer_down(self, event: ActorDown) -> None:
        """Its sequences are gone with it."""
        if self._epochs.get(event.address, event.incarnation + 1) <= event.incarnation:
            del self._epochs[event.address]
            self._forget(event.address)
