"""A model is paused and resumed while requests stream: by each mode, with whatever else is at work, whoever dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

import pageant
from pageant import SamplingParams, StructuredOutputsParams
from pageant.protocol.errors import BadRequest, Unsupported

SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 64, "max_num_seqs": 8, "seed": 5}
PROMPTS = [list(range(40, 70 + extra)) for extra in range(4)]
PARAMS = SamplingParams(temperature=0.9, seed=3, max_tokens=60, ignore_eos=True)
GUIDED = SamplingParams(
    temperature=0.9, seed=3, max_tokens=40, structured_outputs=StructuredOutputsParams(regex="[ab]{30,36}")
)
SPECULATING = {"speculation": {"method": "ngram", "adaptive": False}}
WAYS = {
    "plainly": (SETTINGS, PARAMS),
    "guided, speculating, over the wire, short of blocks": (
        SETTINGS | SPECULATING | {"wire": "always", "num_blocks": 16},
        GUIDED,
    ),
}


@pytest.fixture(scope="module", params=list(WAYS))
def scene(request, checkpoint) -> Iterator[tuple[pageant.Engine, SamplingParams, list[list[int]]]]:
    """An engine, what is asked of it, and the right answers."""
    settings, params = WAYS[request.param]
    engine = pageant.Engine(checkpoint.path, placement="one", **settings)
    asyncio.run(engine.start())

    async def ask() -> list[pageant.RequestOutput]:
        return await asyncio.gather(*(engine.complete(prompt, params) for prompt in PROMPTS))

    yield engine, params, [output.outputs[0].token_ids for output in asyncio.run(ask())]
    asyncio.run(engine.close())


class Streams:
    """Requests that stream, and what has come of them."""

    def __init__(self, engine: pageant.Engine, params: SamplingParams) -> None:
        self.tokens: list[list[int]] = [[] for _ in PROMPTS]
        self.reasons: list[str | None] = [None] * len(PROMPTS)
        self._begun = [asyncio.Event() for _ in PROMPTS]
        self._tasks = [
            asyncio.create_task(self._read(index, engine.generate(prompt, params)))
            for index, prompt in enumerate(PROMPTS)
        ]

    async def _read(self, index: int, stream: AsyncIterator[pageant.RequestOutput]) -> None:
        async for output in stream:
            self.tokens[index] = output.outputs[0].token_ids
            self.reasons[index] = output.outputs[0].finish_reason
            self._begun[index].set()

    async def begun(self) -> None:
        await asyncio.gather(*(event.wait() for event in self._begun))

    async def ended(self) -> list[list[int]]:
        await asyncio.gather(*self._tasks)
        return self.tokens


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds, of which nobody tells."""
    async with asyncio.timeout(60):
        holds = await condition()
        while not holds:
            await asyncio.sleep(0.01)
            holds = await condition()


async def quiet(engine: pageant.Engine) -> int:
    """Steps so far, none of which is computed any more."""
    before = (await engine.scheduler_statistics()).counters["steps"]
    await asyncio.sleep(0.05)
    assert (await engine.scheduler_statistics()).counters["steps"] == before
    return before


@pytest.mark.parametrize("clear_cache", [False, True])
async def test_kept_requests_go_on_with_the_same_tokens(scene, clear_cache):
    engine, params, right = scene
    streams = Streams(engine, params)
    await streams.begun()
    await engine.pause("keep", clear_cache=clear_cache)
    await quiet(engine)
    assert await engine.is_paused() and None in streams.reasons
    pool = await engine.pool_statistics()
    assert not clear_cache or pool.blocks_held == pool.blocks_cached == 0
    await engine.resume()
    assert not await engine.is_paused()
    assert await streams.ended() == right


async def test_open_requests_end_first_and_later_ones_wait(scene):
    engine, params, right = scene
    streams = Streams(engine, params)
    await streams.begun()
    pausing = asyncio.create_task(engine.pause("wait"))
    await until(engine.is_paused)
    late = Streams(engine, params)
    await pausing
    assert await streams.ended() == right
    await quiet(engine)
    assert late.tokens == [[]] * len(PROMPTS)
    await engine.resume()
    assert await late.ended() == right


async def test_open_requests_are_aborted_with_what_they_have_and_later_ones_wait(scene):
    engine, params, right = scene
    streams = Streams(engine, params)
    await streams.begun()
    await engine.pause("abort")
    tokens = await streams.ended()
    assert "abort" in streams.reasons
    for index, reason in enumerate(streams.reasons):
        assert tokens[index] == right[index][: len(tokens[index])]
        assert reason == "abort" or tokens[index] == right[index]
    late = Streams(engine, params)
    await quiet(engine)
    await engine.resume()
    assert await late.ended() == right


async def test_a_resume_ends_the_wait_for_a_pause(scene):
    engine, params, right = scene
    streams = Streams(engine, params)
    await streams.begun()
    pausing = asyncio.create_task(engine.pause("wait"))
    await until(engine.is_paused)
    await engine.resume()
    await pausing
    assert await streams.ended() == right
    assert not await engine.is_paused()


async def test_a_reset_forgets_prefixes_and_disturbs_nobody(scene):
    engine, params, right = scene
    for running in (False, True):
        await engine.complete(PROMPTS[0], params)
        streams = Streams(engine, params)
        await streams.begun()
        assert await engine.reset_prefix_cache(reset_running_requests=running)
        assert not await engine.is_paused()
        assert await streams.ended() == right
    await engine.reset_prefix_cache()
    assert (await engine.pool_statistics()).blocks_cached == 0
    assert (await engine.complete(PROMPTS[0], params)).num_cached_tokens == 0


async def test_whoever_dies_a_pause_stays_and_nothing_is_lost(checkpoint):
    async with pageant.Engine(checkpoint.path, placement="each", **SETTINGS) as engine:
        right = [(await engine.complete(prompt, PARAMS)).outputs[0].token_ids for prompt in PROMPTS]
        streams = Streams(engine, PARAMS)
        await streams.begun()
        await engine.pause("keep", clear_cache=False)
        late = Streams(engine, PARAMS)
        for actor in ("scheduler", "executor", "blocks"):
            pids = {node.node: node.pid for node in await engine.statistics()}
            os.kill(pids[actor], signal.SIGKILL)

            async def has_gone(pid: int = pids[actor]) -> bool:
                return pid not in {node.pid for node in await engine.statistics()}

            await until(has_gone)
            assert await engine.is_paused()
            assert (await engine.scheduler_statistics()).num_running <= len(PROMPTS)
        before = list(map(len, streams.tokens))
        await quiet(engine)
        assert list(map(len, streams.tokens)) == before
        await engine.resume()
        assert await streams.ended() == await late.ended() == right


async def test_a_lifecycle_actor_that_begins_again_and_a_swapped_scheduler_leave_a_pause_as_it_was(
    checkpoint,
):
    async with pageant.Engine(checkpoint.path, placement="one", **SETTINGS) as engine:
        await engine.pause()
        for actor in ("lifecycle", "scheduler"):
            assert await engine.swap(actor) == 2
            assert await engine.is_paused()
        late = asyncio.create_task(engine.complete(PROMPTS[0], PARAMS))
        await quiet(engine)
        assert not late.done()
        await engine.resume()
        assert (await late).finished


async def test_what_cannot_be_is_said(checkpoint, tmp_path, monkeypatch):
    source = """
from pageant.actors.runtime import ActorOptions
from pageant.actors.scheduler.actor import Scheduler

class Older(Scheduler):
    class Options(ActorOptions, frozen=True, kw_only=True):
        max_num_seqs: int = 8
        max_model_len: int = 64

    def __init__(self, options):
        super().__init__(Scheduler.Options(max_num_seqs=options.max_num_seqs, max_model_len=options.max_model_len))
"""
    (tmp_path / "older_lab.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = SETTINGS | {"actors": {"scheduler": {"class": "older_lab:Older"}}}
    async with pageant.Engine(checkpoint.path, placement="one", **settings) as engine:
        with pytest.raises(BadRequest, match="mode is 'sometimes'"):
            await engine.pause("sometimes")
        with pytest.raises(Unsupported, match=r"scheduler cannot be changed so: .*paused"):
            await engine.pause()
        assert (await engine.complete(PROMPTS[0], PARAMS)).finished


def test_a_script_does_the_same(llm):
    llm.generate([PROMPTS[0]], PARAMS)
    llm.pause()
    assert llm.is_paused()
    llm.resume()
    assert not llm.is_paused()
    assert llm.reset_prefix_cache() is True
    assert llm.generate([PROMPTS[0]], PARAMS)[0].num_cached_tokens == 0
