"""An engine that is spoken to as vLLM's users do."""

import asyncio

import pytest

import pageant
from pageant import (
    AsyncEngineArgs,
    AsyncLLM,
    EngineArgs,
    LLMEngine,
    LoRARequest,
    SamplingParams,
    TokensPrompt,
)
from pageant.actors.client.vllm_names import methods
from pageant.actors.client.vllm_names.rows import Kind
from tests.random_adapters import save_adapter

PROMPT = [5, 6, 7, 8]
SHORT = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SMALL = {"placement": "one", "threads": 1, "num_blocks": 64, "enforce_eager": True, "tensor_parallel_size": 1}


@pytest.fixture
async def engine(checkpoint):
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(checkpoint.path), max_num_seqs=8))
    yield engine
    engine.shutdown()


def test_a_call_under_vllms_names_is_the_same(llm, checkpoint):
    (right,) = llm.generate([PROMPT], SHORT)
    prompts = [TokensPrompt(prompt_token_ids=PROMPT, multi_modal_data=None)]
    (found,) = llm.generate(
        prompts=prompts, sampling_params=SHORT, use_tqdm=False, priority=[0], lora_request=None
    )
    assert found.outputs[0].token_ids == right.outputs[0].token_ids == checkpoint.greedy(PROMPT, 6)
    assert found.outputs[0].finished() and found.finished
    assert (found.lora_request, found.encoder_prompt, found.kv_transfer_params) == (None, None, None)
    metrics = found.metrics
    assert metrics.num_generation_tokens == 6
    times = [metrics.arrival_time, metrics.queued_ts, metrics.scheduled_ts, metrics.first_token_ts]
    assert [*times, metrics.last_token_ts] == sorted([*times, metrics.last_token_ts])


def test_parameters_that_are_changed_are_those_of_the_next_call(llm):
    params = llm.get_default_sampling_params()
    params.max_tokens, params.temperature, params.ignore_eos = 3, 0.0, True
    (short,) = llm.generate([PROMPT], params)
    params.max_tokens = 5
    (longer,) = llm.generate([PROMPT], params)
    assert len(short.outputs[0].token_ids) == 3
    assert longer.outputs[0].token_ids[:3] == short.outputs[0].token_ids
    assert llm.get_default_sampling_params().max_tokens == 16


def test_a_chat_with_parts_tools_and_a_template_of_its_own(llm):
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]}]
    (found,) = llm.chat(parts, SHORT, False)
    assert found.prompt == "<|user|>Hi\nthere<|assistant|>"
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    template = (
        "{% for tool in tools %}{{ tool.function.name }}{% endfor %}:{{ messages[0].content }}{{ more }}"
    )
    one = {"role": "user", "content": "Hi"}
    (found,) = llm.chat(
        messages=[one],
        sampling_params=SHORT,
        chat_template=template,
        tools=[tool],
        chat_template_kwargs={"more": "!"},
        add_generation_prompt=False,
    )
    assert found.prompt == "f:Hi!"
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    turns = [
        one,
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "x", "tool_call_id": "1"},
    ]
    shown = "{% for m in messages %}{{ m.tool_calls[0].function.name if m.tool_calls else m.content }},{% endfor %}"
    assert llm.chat(turns, SHORT, chat_template=shown)[0].prompt == "Hi,f,x,"


def test_what_is_enqueued_is_waited_for_in_order(llm):
    names = llm.enqueue([PROMPT, [9]], SHORT) + llm.enqueue_chat([{"role": "user", "content": "Hi"}], SHORT)
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [one.request_id for one in outputs] == names and all(one.finished for one in outputs)
    assert outputs[0].outputs[0].token_ids == llm.generate([PROMPT], SHORT)[0].outputs[0].token_ids
    assert llm.wait_for_completion() == []


def test_the_engine_within_takes_requests_step_by_step(llm):
    engine = llm.llm_engine
    engine.add_request("a", {"prompt_token_ids": PROMPT}, SHORT, None, None, None, None, 3)
    ended = {}
    while engine.has_unfinished_requests():
        ended |= {one.request_id: one for one in engine.step() if one.finished}
    assert ended["a"].outputs[0].token_ids == llm.generate([PROMPT], SHORT)[0].outputs[0].token_ids
    assert engine.get_supported_tasks() == ("generate",) and llm.get_world_size() == 1


def test_the_tokenizer_and_what_is_known_of_the_model(llm, checkpoint):
    tokenizer = llm.get_tokenizer()
    assert tokenizer is llm.llm_engine.get_tokenizer() or tokenizer("ab")["input_ids"]
    assert tokenizer.decode(tokenizer("ab", add_special_tokens=False)["input_ids"]) == "ab"
    config = llm.model_config
    assert config.get_vocab_size() == checkpoint.vocab_size == config.hf_config.vocab_size
    assert (config.model, config.max_model_len) == (str(checkpoint.path), llm.max_model_len)


def test_beams_have_vllms_members(llm):
    (found,) = llm.beam_search([{"prompt_token_ids": PROMPT}], pageant.BeamSearchParams(2, 3, True))
    beam = found.sequences[0]
    assert beam.tokens == [*PROMPT, *beam.token_ids] and beam.cum_logprob == beam.cumulative_logprob
    with pytest.raises(pageant.BadRequest, match=r"temperature: found 0\.5"):
        pageant.BeamSearchParams(beam_width=2, temperature=0.5)


def test_members_are_there_or_say_why_not(llm):
    kinds = ((pageant.LLM, methods.LLM), (LLMEngine, methods.LLM_ENGINE), (AsyncLLM, methods.ASYNC_LLM))
    for cls, table in kinds:
        for name, row in table.items():
            if row.kind is Kind.SAME and name not in {"sleep", "wake_up", "is_sleeping"}:
                assert hasattr(cls, name), (cls, name)
    for name, row in methods.LLM.items():
        if row.kind is Kind.NOT_YET:
            with pytest.raises(pageant.Unsupported) as error:
                getattr(llm, name)
            assert row.meaning in str(error.value) and not hasattr(llm, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = llm.nonsense


def test_counters_need_an_observer(llm):
    with pytest.raises(pageant.Unsupported, match="disable_log_stats=False"):
        llm.get_metrics()


def test_outputs_of_a_request_are_joined():
    pieces = [
        pageant.RequestOutput("r", None, [1], outputs=[pageant.CompletionOutput(0, text, ids)], finished=end)
        for text, ids, end in (("a", [1], False), ("b", [2, 3], True))
    ]
    whole, last = pieces
    whole.add(last, aggregate=True)
    assert (whole.outputs[0].text, whole.outputs[0].token_ids, whole.finished) == ("ab", [1, 2, 3], True)
    whole.add(last, aggregate=False)
    assert whole.outputs[0].text == "b"


async def test_an_async_engine_streams_aborts_and_tells_how_it_is(engine, checkpoint):
    outputs = [one async for one in engine.generate({"prompt_token_ids": PROMPT}, SHORT, request_id="a")]
    assert outputs[-1].outputs[0].token_ids == checkpoint.greedy(PROMPT, 6)
    assert await engine.get_status() == {"status": "running", "requests": 0}

    long = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    seen = []
    async for output in engine.generate(PROMPT, long, "b"):
        seen.append(output)
        if len(seen) == 2:
            await engine.abort(["b", "unknown"])
    assert seen[-1].finished and seen[-1].outputs[0].finish_reason == "abort"
    assert 0 < len(seen[-1].outputs[0].token_ids) < 200
    await engine.wait_for_requests_to_drain(10)
    metrics = {one.name: one for one in await asyncio.to_thread(engine._metrics)}
    assert metrics["vllm:generation_tokens"].value >= 6

    await engine.check_health()
    assert engine.is_running and not engine.errored and engine.dead_error is None
    assert await engine.reset_prefix_cache() and await engine.get_supported_tasks() == ("generate",)
    engine.shutdown()
    assert engine.is_stopped and isinstance(engine.dead_error, pageant.EngineClosed)
    with pytest.raises(pageant.EngineClosed):
        await engine.check_health()


def test_an_adapter_is_loaded_when_a_request_first_names_it(checkpoint, tmp_path):
    adapter = save_adapter(tmp_path, checkpoint.model, ("q_proj", "v_proj"), size=0.5)
    arguments = EngineArgs(str(checkpoint.path), enable_lora=True, max_loras=1, max_lora_rank=16)
    with pageant.LLM(**{**vars(arguments), **SMALL}) as llm:
        mine = LoRARequest("mine", 1, str(adapter.path))
        plain, adapted = llm.generate([PROMPT, PROMPT], SHORT, lora_request=[None, mine])
        assert llm.adapters() == ["mine"] and adapted.lora_request is mine
        assert plain.outputs[0].token_ids == checkpoint.greedy(PROMPT, 6) != adapted.outputs[0].token_ids
        again = llm.generate(PROMPT, SHORT, lora_request=mine)[0]
        assert again.outputs[0].token_ids == adapted.outputs[0].token_ids
        with pytest.raises(pageant.BadRequest, match="adapter is 'other'"):
            llm.generate(PROMPT, SHORT, lora_request=LoRARequest("other", 2))
