"""One request that kills an actor's process among others: whenever it is computed, or before."""

from __future__ import annotations

import asyncio
import os
import signal

import msgspec
import pytest

import pageant
from pageant import RequestFailed, SamplingParams, StructuredOutputsParams
from pageant.protocol.supervision import GetDirectory

POISON = '''
import os
import signal

class Poison:
    """Kills its own process when a request has so many tokens."""

    def wants(self, params):
        return bool(params.extra_args)

    def apply(self, logits, rows):
        if any(len(row.output_token_ids) >= row.params.extra_args["deadly_at"] for row in rows):
            os.kill(os.getpid(), signal.SIGKILL)
        return logits
'''
NUM_REQUESTS, POISONED = 64, 37


def requests() -> list[tuple[list[int], SamplingParams]]:
    """Greedy and seeded ones in turn."""
    return [
        (
            [*range(10, 40), 100 + number],
            SamplingParams(temperature=number % 2, seed=number, max_tokens=24 + number % 7, ignore_eos=True),
        )
        for number in range(NUM_REQUESTS)
    ]


async def test_the_others_finish_unchanged_and_it_ends_with_an_error(checkpoint, tmp_path, monkeypatch):
    (tmp_path / "poison_processor.py").write_text(POISON)
    monkeypatch.syspath_prepend(tmp_path)
    async with pageant.Engine(
        checkpoint.path,
        placement="each",
        dtype="float32",
        threads=1,
        num_blocks=512,
        max_num_seqs=NUM_REQUESTS,
        actors={"executor": {"options": {"logits_processors": ["poison_processor:Poison"]}}},
    ) as engine:
        asked = requests()
        right = await asyncio.gather(*(engine.complete(*one) for one in asked))
        prompt, params = asked[POISONED]
        params = SamplingParams(
            temperature=1, seed=POISONED, max_tokens=24, ignore_eos=True, extra_args={"deadly_at": 9}
        )
        asked[POISONED] = prompt, params
        async with asyncio.timeout(60):
            found = await asyncio.gather(*(engine.complete(*one) for one in asked), return_exceptions=True)
        failure = found[POISONED]
        assert isinstance(failure, RequestFailed) and "died" in str(failure)
        for number, (one, other) in enumerate(zip(found, right, strict=True)):
            if number != POISONED:
                assert one.outputs[0].token_ids == other.outputs[0].token_ids, f"request {number}"
        directory = {entry.name: entry for entry in (await engine.ask("supervisor", GetDirectory())).actors}
        assert directory["executor/0"].restarts == 3
        counters = (await engine.scheduler_statistics()).counters
        assert counters["suspects_tried"] < NUM_REQUESTS


DEADLY = """
import os
import signal

from pageant.actors.grammar.actor import Grammar
from pageant.actors.tokenizer import Tokenizer


class DeadlyTokenizer(Tokenizer):
    async def tokenize(self, request):
        if request.text == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().tokenize(request)


class DeadlyGrammar(Grammar):
    async def compile(self, request):
        if request.structured_outputs.regex == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().compile(request)
"""


@pytest.mark.parametrize("role", ["tokenizer", "grammar"])
async def test_what_kills_those_who_prepare_it_ends_alone_too(checkpoint, tmp_path, monkeypatch, role):
    (tmp_path / "deadly_actors.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    actors = {role: {"class": f"deadly_actors:Deadly{role.title()}"}}
    async with pageant.Engine(
        checkpoint.path, placement="each", dtype="float32", threads=1, num_blocks=512, actors=actors
    ) as engine:

        def asked(word: str) -> tuple[str, SamplingParams]:
            if role == "tokenizer":
                return word, SamplingParams(temperature=0, max_tokens=4)
            guided = StructuredOutputsParams(regex=word)
            return "a", SamplingParams(temperature=0, max_tokens=32, structured_outputs=guided)

        words = [f"harmless {number}" for number in range(12)]
        right = [(await engine.complete(*asked(word))).outputs[0].text for word in words]
        async with asyncio.timeout(60):
            found = await asyncio.gather(
                *(engine.complete(*asked(word)) for word in ("poison", *words)), return_exceptions=True
            )
            again = await engine.complete(*asked(words[0]))
        assert isinstance(found[0], RequestFailed) and f"{role} died 4 times with it" in str(found[0])
        assert [one.outputs[0].text for one in (*found[1:], again)] == [*right, right[0]]
        directory = {entry.name: entry for entry in (await engine.ask("supervisor", GetDirectory())).actors}
        assert directory[role].restarts == 4


COUNTED = """
import os
import signal
from pathlib import Path

from pageant.actors.grammar import isolated
from pageant.actors.grammar.actor import Grammar


def open_compiler(argument):
    compile_source = isolated.open_compiler(argument)

    def compile_or_die(data):
        if b"poison" in data:
            with Path({deaths!r}).open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return compile_source(data)

    return compile_or_die


class Counted(Grammar):
    def __init__(self, options):
        # Only in this actor's process: the module is also imported where the topology is checked.
        isolated.IsolatedTrial.opener = f"{{__name__}}:open_compiler"
        super().__init__(options)
"""


async def test_a_grammar_that_kills_is_remembered_by_the_next_life_of_its_actor(
    checkpoint, tmp_path, monkeypatch
):
    deaths = tmp_path / "deaths"
    (tmp_path / "counted_grammar.py").write_text(COUNTED.format(deaths=str(deaths)))
    monkeypatch.syspath_prepend(tmp_path)
    actors = {"grammar": {"class": "counted_grammar:Counted"}}
    settings = {"placement": "each", "dtype": "float32", "threads": 1, "num_blocks": 64}
    guided = {
        word: SamplingParams(
            temperature=0, max_tokens=8, structured_outputs=StructuredOutputsParams(regex=word)
        )
        for word in ("poison", "harmless")
    }
    async with pageant.Engine(checkpoint.path, actors=actors, **settings) as engine:
        for _ in range(3):
            with pytest.raises(pageant.BadRequest, match="ended by signal 9"):
                await engine.complete("a", guided["poison"])
            assert (await engine.complete("a", guided["harmless"])).outputs[0].text == "harmless"
            assert deaths.read_text() == "x", "it had one process in all"
            pid = next(node.pid for node in await engine.statistics() if node.node == "grammar")
            os.kill(pid, signal.SIGKILL)


HANGING = """
import pathlib
import threading

class Hanging:
    '''Never returns, the first time that a request of eight that are there has so many tokens.'''

    def wants(self, params):
        return bool(params.extra_args)

    def apply(self, logits, rows):
        for row in rows:
            marker = pathlib.Path(row.params.extra_args["marker"])
            if len(rows) == 8 and len(row.output_token_ids) >= 9 and not marker.exists():
                marker.touch()
                threading.Event().wait()
        return logits
"""


async def test_a_step_that_never_returns_is_a_death_like_any_other(checkpoint, tmp_path, monkeypatch, caplog):
    (tmp_path / "hanging_processor.py").write_text(HANGING)
    monkeypatch.syspath_prepend(tmp_path)
    options = {"logits_processors": ["hanging_processor:Hanging"], "step_patience": 2.0}
    async with pageant.Engine(
        checkpoint.path,
        placement="each",
        dtype="float32",
        threads=1,
        num_blocks=512,
        actors={"executor": {"options": options}},
    ) as engine:
        # Samples of one request, which come one soon after another: all eight are there for most of their tokens.
        prompt, params = requests()[1]
        params = msgspec.structs.replace(params, n=8)
        right = await engine.complete(prompt, params)
        params = msgspec.structs.replace(params, extra_args={"marker": str(tmp_path / "marker")})
        async with asyncio.timeout(60):
            found = await engine.complete(prompt, params)
        assert [sample.token_ids for sample in found.outputs] == [
            sample.token_ids for sample in right.outputs
        ]
        directory = await engine.ask("supervisor", GetDirectory())
        assert {entry.name: entry.incarnation for entry in directory.nodes}["executor"] == 2
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "executor/0#1 failed after it had started: StepHung: a step of 8 tokens has not returned" in logged
    assert "node executor#1 is gone" in logged
