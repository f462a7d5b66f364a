"""Other people's clients, unchanged: openai's, anthropic's and LangChain's, sync and async, streaming and not."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest
from langchain_openai import ChatOpenAI
from websockets.sync.client import connect

import pageant

QUESTION = [{"role": "user", "content": "Explain the with statement"}]
GREEDY = {"temperature": 0}  # which anthropic's client does not know
MODEL = {"model": "demo", "temperature": 0}


@pytest.fixture(scope="module")
def right(llm):
    """Return what the engine itself answers."""
    right = llm.chat([QUESTION], pageant.SamplingParams(temperature=0.0, max_tokens=400))[0]
    assert right.outputs[0].finish_reason == "stop"  # which clients take for success
    return right


@pytest.fixture
async def openai_async(url):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def claude(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude_async(url):
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def test_openais_chats_and_completions_async(openai_async, right, llm):
    chat = await openai_async.chat.completions.create(messages=QUESTION, max_tokens=400, **MODEL)
    assert chat.choices[0].message.content == right.outputs[0].text
    async with openai_async.chat.completions.stream(messages=QUESTION, max_tokens=400, **MODEL) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == right.outputs[0].text
    text = await openai_async.completions.create(prompt=right.prompt_token_ids, max_tokens=400, **MODEL)
    assert text.choices[0].text == right.outputs[0].text
    stream = await openai_async.completions.create(
        prompt=right.prompt_token_ids, max_tokens=400, stream=True, **MODEL
    )
    assert "".join([chunk.choices[0].text async for chunk in stream]) == right.outputs[0].text


def test_openais_logprobs_are_read(client):
    answer = client.chat.completions.create(
        messages=QUESTION, max_tokens=4, logprobs=True, top_logprobs=3, **MODEL
    )
    (first, *_) = answer.choices[0].logprobs.content
    assert first.token == first.top_logprobs[0].token and len(first.top_logprobs) == 3


def test_openais_errors_are_what_they_should_be(client, url):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(messages=QUESTION, model="demo", temperature=-1)
    assert raised.value.param == "temperature" and raised.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(messages=QUESTION, model="other")
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="demo", input=[{"type": "computer_call", "call_id": "x"}])


def text_of(response):
    assert response.object == "response" and response.output[0].type == "message"
    return response.output_text


def test_a_response_is_created_kept_and_gone_on_from(client, right):
    response = client.responses.create(input="Explain the with statement", max_output_tokens=400, **MODEL)
    assert text_of(response) == right.outputs[0].text
    assert response.usage.input_tokens == len(right.prompt_token_ids)
    assert response.status in ("completed", "incomplete")
    again = client.responses.retrieve(response.id)
    assert again.output_text == response.output_text
    more = {"input": "And then?", "max_output_tokens": 8, **MODEL}
    following = client.responses.create(previous_response_id=response.id, **more)
    said = [*QUESTION, {"role": "assistant", "content": response.output_text}]
    alike = client.chat.completions.create(
        messages=[*said, {"role": "user", "content": "And then?"}], max_tokens=8, **MODEL
    )
    assert following.output_text == alike.choices[0].message.content
    assert following.usage.input_tokens == alike.usage.prompt_tokens
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    unkept = client.responses.create(input="Hello", max_output_tokens=2, store=False, **MODEL)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


async def test_a_response_is_streamed(openai_async, right):
    asked = {"input": QUESTION, "instructions": "Be brief.", "max_output_tokens": 400, **MODEL}
    whole = await openai_async.responses.create(**asked)
    events = [event async for event in await openai_async.responses.create(stream=True, **asked)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:-1] == ["output_text.done", "content_part.done", "output_item.done"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens
    async with openai_async.responses.stream(**asked) as stream:
        assert (await stream.get_final_response()).output_text == whole.output_text


def test_a_response_that_is_deleted_while_it_runs_stays_deleted(client):
    asked = {"input": "Explain the with statement", "max_output_tokens": 900, **MODEL}
    with client.responses.create(stream=True, extra_body={"ignore_eos": True}, **asked) as stream:
        first = next(stream)
        client.responses.delete(first.response.id)
        *_, last = stream
    assert last.response.status == "cancelled"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.response.id)


def test_anthropics_messages(claude, right):
    asked = {"messages": QUESTION, "max_tokens": 400, "model": "demo", "extra_body": GREEDY}
    message = claude.messages.create(**asked)
    assert message.content[0].text == right.outputs[0].text
    assert message.stop_reason == "end_turn" and message.role == "assistant"
    counted = claude.messages.count_tokens(model="demo", messages=QUESTION).input_tokens
    assert counted == len(right.prompt_token_ids)
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted
    with claude.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == right.outputs[0].text
        assert stream.get_final_message().usage.output_tokens == usage.output_tokens
    half = right.outputs[0].text[:12]
    begun = [*QUESTION, {"role": "assistant", "content": [{"type": "text", "text": half}]}]
    assert claude.messages.create(**asked | {"messages": begun}).content[0].text
    stopped = claude.messages.create(**asked, stop_sequences=[right.outputs[0].text[3:6]])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", right.outputs[0].text[3:6])


async def test_anthropics_messages_async_and_their_errors(claude_async, right):
    asked = {"messages": QUESTION, "max_tokens": 400, "model": "demo", "extra_body": GREEDY}
    message = await claude_async.messages.create(**asked, system="Be brief.")
    async with claude_async.messages.stream(**asked, system="Be brief.") as stream:
        assert "".join([text async for text in stream.text_stream]) == message.content[0].text
    with pytest.raises(anthropic.NotFoundError) as raised:
        await claude_async.messages.create(**asked | {"model": "other"})
    assert raised.value.body["type"] == "error" and raised.value.body["error"]["type"] == "not_found_error"
    image = [{"type": "image", "source": {"type": "url", "url": "x"}}]
    with pytest.raises(anthropic.BadRequestError):
        await claude_async.messages.create(**asked | {"messages": [{"role": "user", "content": image}]})


async def test_langchains_chat_model(url, right):
    model = ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model="demo", temperature=0, max_tokens=400, max_retries=0
    )
    assert model.invoke("Explain the with statement").content == right.outputs[0].text
    assert "".join(piece.content for piece in model.stream(QUESTION)) == right.outputs[0].text
    assert (await model.ainvoke(QUESTION)).usage_metadata["input_tokens"] == len(right.prompt_token_ids)
    assert "".join([piece.content async for piece in model.astream(QUESTION)]) == right.outputs[0].text


def test_a_web_socket_streams_the_same_chunks(url, client, right):
    asked = {"messages": QUESTION, "max_tokens": 400, "temperature": 0}
    with connect(f"{url.replace('http', 'ws')}/v1/chat/completions") as socket:
        for wrong in ("{", json.dumps(asked | {"temperature": -1})):
            socket.send(wrong)
            assert json.loads(socket.recv())["error"]["type"] == "invalid_request_error"
            assert socket.recv() == "[DONE]"
        for _ in range(2):
            socket.send(json.dumps(asked))
            socket.send(json.dumps(asked | {"max_tokens": 1}))  # waits for its turn
            for most in (400, 1):
                text, tokens = "", 0
                while (message := socket.recv()) != "[DONE]":
                    choice = json.loads(message)["choices"][0]
                    text += choice["delta"].get("content") or ""
                    tokens += 1
                assert right.outputs[0].text.startswith(text) and tokens > 1
                assert most == 1 or text == right.outputs[0].text
