"""The shell: what compiling may take, and who waits for it."""

from __future__ import annotations

import asyncio
import threading

from pageant.actors.grammar.actor import Grammar
from pageant.actors.runtime.node import Node
from pageant.protocol.guiding import CompileGrammar, GrammarCompiled, GrammarRefused
from pageant.protocol.structured_outputs import StructuredOutputsParams

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
    actor = Grammar(Grammar.Options(model="", vocab_size=1, eos_token_ids=(0,), compile_seconds_max=0.05))
    actor._compiler = compiler
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
