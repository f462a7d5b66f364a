"""`Engine`, from event loops, threads and notebooks; what happens when a user leaves, blocks or closes."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import CancelledError

import numpy as np
import pytest

import pageant
from pageant import SamplingParams
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of
from pageant.protocol.statistics import GetExecutorStatistics

PROMPT = list(range(10, 30))
LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def _engine(checkpoint, **settings) -> pageant.Engine:
    return pageant.Engine(checkpoint.path, placement="one", threads=1, num_blocks=128, **settings)


async def _rest(engine: pageant.Engine) -> None:
    """Returns once nothing is open; the engine does its bookkeeping within a few messages."""
    async with asyncio.timeout(20):
        while True:
            scheduler, pool = await engine.scheduler_statistics(), await engine.pool_statistics()
            if not (scheduler.num_running or scheduler.num_waiting or pool.blocks_held):
                return


async def test_outputs_stream_and_add_up(checkpoint):
    async with _engine(checkpoint) as engine:
        outputs = [output async for output in engine.generate(PROMPT, SHORT)]
    final = outputs[-1]
    assert final.finished and not any(output.finished for output in outputs[:-1])
    assert "".join(output.outputs[0].new_text for output in outputs) == final.outputs[0].text
    pieces = [token for output in outputs for token in output.outputs[0].new_token_ids]
    assert pieces == final.outputs[0].token_ids
    assert final.outputs[0].token_ids == checkpoint.greedy(PROMPT, 8)
    assert final.prompt_token_ids == PROMPT


async def test_complete_returns_the_last_output_only(checkpoint):
    async with _engine(checkpoint) as engine:
        output = await engine.complete("Hello", SHORT)
    assert output.finished and len(output.outputs[0].token_ids) == 8
    assert output.prompt == "Hello"


async def test_chat_renders_the_checkpoints_template(checkpoint):
    async with _engine(checkpoint) as engine:
        outputs = [output async for output in engine.chat([{"role": "user", "content": "Hi"}], SHORT)]
    assert outputs[-1].prompt == "<|user|>Hi<|assistant|>"
    assert outputs[-1].prompt_token_ids[0] == 2, "the special token, not its letters"


async def test_leaving_the_iteration_aborts_the_request_and_frees_its_blocks(checkpoint):
    async with _engine(checkpoint) as engine:
        async for _ in (outputs := engine.generate(PROMPT, LONG)):
            break
        await outputs.aclose()
        await _rest(engine)
        assert (await engine.scheduler_statistics()).counters["aborts_running_decode"] == 1


async def test_cancelling_aborts_the_request(checkpoint):
    async with _engine(checkpoint) as engine:
        started = asyncio.Event()

        async def consume() -> None:
            async for _ in engine.generate(PROMPT, LONG):
                started.set()

        task = asyncio.create_task(consume())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _rest(engine)


async def test_a_user_who_blocks_the_own_loop_delays_no_step(checkpoint):
    async with _engine(checkpoint) as engine:
        outputs = engine.generate(PROMPT, LONG)
        first = await anext(outputs)
        session = engine._session
        deadline = time.monotonic() + 30
        while session.scheduler_statistics().num_running:  # this loop does not run meanwhile
            assert time.monotonic() < deadline, "the engine waits for the user's loop"
        rest = [output async for output in outputs]
    assert len(first.outputs[0].token_ids) < 200
    assert len(rest) == 1, "all that came meanwhile comes at once"
    assert len(rest[0].outputs[0].token_ids) == 200


def test_one_engine_serves_several_loops_and_threads(checkpoint):
    expected = checkpoint.greedy(PROMPT, 8)
    engine = _engine(checkpoint)
    asyncio.run(engine.start())
    found: list[list[int]] = []

    def use() -> None:
        for _ in range(2):  # a new loop each time
            found.append(asyncio.run(engine.complete(PROMPT, SHORT)).outputs[0].token_ids)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(engine.close())
    assert found == [expected] * 8


async def test_two_engines_live_side_by_side(make_checkpoint):
    llama, qwen = make_checkpoint("llama"), make_checkpoint("qwen3")
    async with _engine(llama) as first, _engine(qwen) as second:
        one, two = await asyncio.gather(first.complete(PROMPT, SHORT), second.complete(PROMPT, SHORT))
    assert one.outputs[0].token_ids == llama.greedy(PROMPT, 8)
    assert two.outputs[0].token_ids == qwen.greedy(PROMPT, 8)


async def test_llm_works_where_a_loop_is_running_as_in_a_notebook(checkpoint):
    with pageant.LLM(checkpoint.path, placement="one", progress=False, threads=1, num_blocks=64) as llm:
        assert llm.generate(PROMPT, SHORT)[0].outputs[0].token_ids == checkpoint.greedy(PROMPT, 8)


async def test_closing_ends_open_requests_with_a_clear_error(checkpoint):
    engine = _engine(checkpoint)
    await engine.start()
    outputs = engine.generate(PROMPT, LONG)
    await anext(outputs)
    await engine.close()
    with pytest.raises(pageant.PeerGone, match="closed"):
        async for _ in outputs:
            pass


async def test_a_closed_engine_says_so(checkpoint):
    async with _engine(checkpoint) as engine:
        pass
    with pytest.raises(pageant.EngineClosed):
        await engine.complete(PROMPT, SHORT)


async def test_nothing_is_left_after_closing(checkpoint):
    before = set(threading.enumerate())
    tasks = len(asyncio.all_tasks())
    async with _engine(checkpoint) as engine:
        await engine.complete(PROMPT, SHORT)
        session = engine._session
    node = session._cluster.node
    assert not node.cells and not asyncio.all_tasks(node.loop)
    assert node.loop.is_closed()
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:  # they end by themselves
        if thread.name.startswith("pageant"):
            thread.join(timeout=10)
    alive = [thread.name for thread in left if thread.is_alive()]
    assert len(alive) <= 1, f"but for the loop's own default executor, {alive}"
    assert len(asyncio.all_tasks()) == tasks


async def test_a_request_id_can_be_used_again_after_leaving(checkpoint):
    async with _engine(checkpoint) as engine:
        for _ in range(20):
            stream = engine.generate(PROMPT, LONG, request_id="mine")
            await anext(stream)
            await stream.aclose()
            again = await engine.complete(PROMPT, SHORT, request_id="mine")
            assert again.outputs[0].token_ids == checkpoint.greedy(PROMPT, 8), "nothing of the one before it"


async def test_more_requests_than_may_be_open_are_refused_at_once(checkpoint, monkeypatch):
    monkeypatch.setattr("pageant.actors.frontend.frontend.OPEN_MAX", 50)
    async with _engine(checkpoint) as engine:
        results = await asyncio.gather(
            *(engine.complete([4 + i % 200], SHORT) for i in range(120)), return_exceptions=True
        )
        served = [result for result in results if isinstance(result, pageant.RequestOutput)]
        refused = [result for result in results if isinstance(result, pageant.Overloaded)]
        assert len(served) >= 50 and len(served) + len(refused) == 120 and refused
        await _rest(engine)


def test_closing_during_a_batch_larger_than_the_window_ends_the_call(checkpoint, monkeypatch):
    monkeypatch.setattr("pageant.actors.client.batching.WINDOW", 8)
    llm = pageant.LLM(checkpoint.path, placement="one", progress=False, threads=1, num_blocks=64)
    caught: list[BaseException] = []

    def generate() -> None:
        try:
            llm.generate([[4 + i % 200] for i in range(3000)], LONG)
        except pageant.PageantError as error:
            caught.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    while not llm.scheduler_statistics().num_running:
        pass
    llm.close()
    thread.join(timeout=30)
    assert not thread.is_alive() and caught


async def test_an_engine_that_was_closed_can_be_started_again(checkpoint):
    engine = _engine(checkpoint)
    for _ in range(2):
        async with engine:
            assert (await engine.complete(PROMPT, SHORT)).finished


def test_a_batch_keeps_order_and_takes_one_set_of_parameters_per_prompt(llm, checkpoint):
    prompts = ["a", [5, 6, 7], "longer text here"]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (3, 5, 7)]
    outputs = llm.generate(prompts, params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 5, 7]
    assert [output.prompt for output in outputs] == ["a", None, "longer text here"]
    assert outputs[1].outputs[0].token_ids == checkpoint.greedy([5, 6, 7], 5)


def test_texts_ids_and_vllms_mappings_are_mixed_in_one_call(llm):
    ids = llm.generate("Anna", SHORT)[0].prompt_token_ids
    prompts = ["Anna", ids, {"prompt": "Anna"}, {"prompt_token_ids": ids}]
    texts = [output.outputs[0].text for output in llm.generate(prompts, SHORT)]
    assert texts == [texts[0]] * 4
    assert llm.generate({"prompt": "Anna"}, SHORT)[0].outputs[0].text == texts[0]


def test_chat_takes_one_conversation_or_several(llm):
    one = [{"role": "user", "content": "Hi"}]
    two = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hello"}]
    single = llm.chat(one, SHORT)
    both = llm.chat([one, two], SHORT)
    assert len(single) == 1 and len(both) == 2
    assert single[0].outputs[0].token_ids == both[0].outputs[0].token_ids


def test_an_empty_batch_is_an_empty_answer(llm):
    assert llm.generate([]) == []


def test_a_batch_far_larger_than_the_window_is_complete(checkpoint, monkeypatch):
    monkeypatch.setattr("pageant.actors.client.batching.WINDOW", 8)
    with pageant.LLM(checkpoint.path, placement="one", progress=False, threads=1, num_blocks=64) as llm:
        outputs = llm.generate(
            [[4 + i % 200] for i in range(100)], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        )
    assert len(outputs) == 100 and all(output.finished for output in outputs)


def test_the_served_name_is_the_models_path_unless_said_otherwise(checkpoint):
    assert pageant.Engine(checkpoint.path).model_name == str(checkpoint.path)
    assert pageant.Engine(checkpoint.path, served_model_name="tiny").model_name == "tiny"


async def test_asks_wait_for_nobody_elses_answer_and_are_cancelled_with_their_handlers(
    checkpoint, monkeypatch
):
    async def statistics(self, request):
        loop.call_soon_threadsafe(begun.put_nowait, 1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            loop.call_soon_threadsafe(cancelled_ones.put_nowait, 1)
            raise

    loop, begun, cancelled_ones = asyncio.get_running_loop(), asyncio.Queue(), asyncio.Queue()
    monkeypatch.setattr("pageant.actors.executor.actor.Executor.statistics", statistics)
    async with _engine(checkpoint) as engine, asyncio.timeout(30):
        asks = [asyncio.create_task(engine.ask("executor/0", GetExecutorStatistics())) for _ in range(20)]
        for _ in asks:
            await begun.get()
        for ask in asks:
            ask.cancel()
        assert (await engine.scheduler_statistics()).num_running == 0
        for _ in asks:
            await cancelled_ones.get()


def test_a_start_that_waits_for_others_can_be_given_up(checkpoint):
    topology = {
        "model": str(checkpoint.path),
        "listen": "tcp://127.0.0.1:*",
        "nodes": {"front": {}, "other": {"host": "127.0.0.1"}},
        "actors": {"executor": {"nodes": ["other"]}},
    }
    session = Session(topology_of(None, topology, {}))
    ends = []

    def start() -> None:
        try:
            session.start()
        except CancelledError as error:
            ends.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    while starting.is_alive():
        session.cancel_start()
        starting.join(0.05)
    assert len(ends) == 1
    session.stop()


async def test_numbers_and_strings_of_other_types_harm_nobody(checkpoint):
    odd = SamplingParams(
        temperature=np.float64(0),
        max_tokens=8,
        ignore_eos=True,
        stop=[np.str_("never said")],
        logit_bias={5: np.float64(0)},
    )
    async with pageant.Engine(checkpoint.path, placement="each", threads=1, num_blocks=128) as engine:
        found = await engine.complete(PROMPT, odd, deadline=np.float64(60), cache_salt=np.str_("salt"))
        assert found.outputs[0].token_ids == checkpoint.greedy(PROMPT, 8)
        assert (await engine.complete(np.str_("text"), SHORT)).finished
