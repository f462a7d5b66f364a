"""One request that kills the executor's process, whenever it is computed, among 64."""

from __future__ import annotations

import asyncio

import msgspec

import pageant
from pageant import RequestFailed, SamplingParams
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


HANGING = """
import pathlib
import threading

class Hanging:
    '''Never returns, the first time that a request has so many tokens.'''

    def wants(self, params):
        return bool(params.extra_args)

    def apply(self, logits, rows):
        for row in rows:
            marker = pathlib.Path(row.params.extra_args["marker"])
            if len(row.output_token_ids) >= 9 and not marker.exists():
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
        # Samples of one request, which come together: of eight requests some may be past the token that hangs before
        # the others have come.
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
