"""The shell: what compiling may take, who waits for it, and which thread computes masks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pageant.actors.grammar.actor import Grammar
from pageant.actors.grammar.core import Guides
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.runtime.node import Node
from pageant.protocol.arrays import int32, int64
from pageant.protocol.guiding import (
    CompileGrammar,
    GrammarCompiled,
    GrammarRefused,
    GuideStep,
    OpenGuide,
    TokenMasks,
)
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.protocol.supervision import ActorUp

SECONDS = 10.0


class Compiler:
    """Compiles what begins with "costly" only once it may."""

    def __init__(self):
        self.may = threading.Event()
        self.begun = []

    def compile(self, asked):
        self.begun.append(asked.regex)
        if asked.regex.startswith("costly"):
            assert self.may.wait(SECONDS)
        return object()


async def test_a_costly_grammar_is_refused_and_those_behind_it_are_not():
    compiler, node = Compiler(), Node("front")
    options = {"model": "", "vocab_size": 1, "eos_token_ids": (0,), "isolate": False}
    actor = Grammar(Grammar.Options(**options, compile_seconds_max=0.05))
    actor._backend = compiler
    await node.add("grammar", 1, actor).start()

    def ask(regex):
        request = CompileGrammar(structured_outputs=StructuredOutputsParams(regex=regex))
        return asyncio.ensure_future(node.ask("grammar", request, SECONDS))

    costly = [ask("costly one"), ask("costly two")]
    cheap = ask("cheap")
    for asked in costly:
        refused = await asked
        assert isinstance(refused, GrammarRefused)
        assert refused.reason == "it takes more than 0.05 seconds to compile"
    assert compiler.begun == ["costly one", "costly two"] and not cheap.done(), "both threads are taken"
    compiler.may.set()
    assert isinstance(await cheap, GrammarCompiled)
    await node.stop()


class Executor(Actor):
    """Follows one sequence of "aaa..." and knows when it has its masks."""

    def __init__(self):
        super().__init__(ActorOptions())
        self.masks = asyncio.Queue()

    @receives
    def took(self, message: TokenMasks) -> None:
        self.masks.put_nowait(message.positions.tolist())

    @receives
    def peer_up(self, event: ActorUp) -> None: ...

    def step(self, opened=(), **columns):
        """Tells the grammar, and waits."""
        self.tell("grammar", GuideStep(epoch=1, opened=opened, **columns))
        return self.masks.get()


@pytest.mark.parametrize(("loop_seconds_max", "expected"), [(1e9, [False, True, True]), (0.0, [False] * 3)])
async def test_what_costs_little_is_computed_on_the_loop(
    compiler, vocab_size, spell, monkeypatch, loop_seconds_max, expected
):
    options = Grammar.Options(
        model="", vocab_size=vocab_size, eos_token_ids=(0,), isolate=False, loop_seconds_max=loop_seconds_max
    )
    grammar, executor, node, found = Grammar(options), Executor(), Node("front"), []
    grammar._backend, computed = compiler, Guides.step

    def step(self, *args, here):
        assert here == (threading.current_thread() is loop)
        found.append(here)
        return computed(self, *args, here=here)

    loop = threading.current_thread()
    monkeypatch.setattr(Guides, "step", step)
    await node.add("grammar", 1, grammar).start()
    await node.add("executor/0", 1, executor).start()
    asked = StructuredOutputsParams(regex="a+")
    opened = OpenGuide(guide=1, structured_outputs=asked, position=5, token_ids=int32())
    assert await executor.step(opened=(opened,)) == [5]
    (token,) = spell("a")
    for position in (5, 6):
        columns = {"guides": int64([1]), "positions": int64([position]), "token_ids": int32([token])}
        assert await executor.step(**columns) == [position + 1]
    assert found == expected
    await node.stop()
