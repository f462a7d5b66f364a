"""A swap for what cannot do its work is undone by another swap, whatever became of the actor."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType

import pytest

import pageant
from pageant import SamplingParams
from pageant.actors.scheduler.policies import FirstComeFirstServed
from pageant.protocol.errors import BadRequest
from pageant.protocol.supervision import GetDirectory

DEATHS = 3
"""Restarts of a scheduler, a swap among them, before its policy is swapped out."""
SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)


class Failing(FirstComeFirstServed):
    """A policy that fails at the first request."""

    def order(self, request):
        raise RuntimeError("a bug of the user's")


@pytest.fixture
def policy(monkeypatch) -> str:
    module = ModuleType("failing_policies")
    module.Failing = Failing
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{module.__name__}:Failing"


async def restarts(engine: pageant.Engine) -> int:
    """How often the scheduler has begun again."""
    directory = await engine.ask("supervisor", GetDirectory())
    return next(one.restarts for one in directory.actors if one.name == "scheduler")


async def test_a_policy_that_kills_its_scheduler_is_swapped_out_again(checkpoint, policy):
    async with pageant.Engine(checkpoint.path, placement="one", num_blocks=32, threads=1) as engine:
        right = await engine.complete([5, 6, 7], SHORT)
        await engine.swap("scheduler", options={"policy": policy})
        asked = asyncio.create_task(engine.complete([5, 6, 7], SHORT))
        while await restarts(engine) < DEATHS:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await engine.swap("scheduler", options={"policy": "shortest"})
        again = await asked
        assert again.outputs[0].token_ids == right.outputs[0].token_ids


async def test_a_name_that_no_actor_has_is_refused_with_the_nearest(checkpoint):
    async with pageant.Engine(checkpoint.path, placement="one", num_blocks=32, threads=1) as engine:
        with pytest.raises(BadRequest, match="there is no actor 'schedular'; did you mean 'scheduler'"):
            await engine.swap("schedular")
