"""The HTTP server, as its clients see it: OpenAI's own, and hostile ones."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path

import httpx
import openai
import pytest

import pageant
from pageant.actors.client.cast import HTTP
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of

DEMO = Path(pageant.__file__).parent / "models" / "demo"
QUESTION = [{"role": "user", "content": "Explain the with statement"}]


def start(wire="auto", **options):
    settings = {"placement": "one", "threads": 1, "wire": wire, "kv_cache_memory": "64MiB"}
    session = Session(
        topology_of(DEMO, None, settings | {"actors": {HTTP: {"options": {"port": 0} | options}}})
    )
    session.start()
    return session


@pytest.fixture(scope="module", params=["auto", "always"])
def session(request):
    session = start(request.param)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def url(session):
    return session.served_at().split()[-1]


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def right():
    """Return what the engine itself answers."""
    with pageant.LLM(DEMO, placement="one", threads=1, kv_cache_memory="64MiB") as llm:
        greedy = pageant.SamplingParams(temperature=0.0, max_tokens=24)
        chat = llm.chat([QUESTION], greedy)[0]
        text = llm.generate(["def read(path):"], greedy)[0]
    return {"chat": chat, "text": text}


def test_a_chat_is_answered_as_the_engine_answers_it(client, right):
    answer = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0, max_tokens=24)
    assert answer.choices[0].message.content == right["chat"].outputs[0].text
    assert answer.choices[0].finish_reason == right["chat"].outputs[0].finish_reason
    assert answer.usage.prompt_tokens == len(right["chat"].prompt_token_ids)
    assert answer.usage.completion_tokens == len(right["chat"].outputs[0].token_ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_is_the_same_in_pieces(client, right):
    stream = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}],
        temperature=0,
        max_completion_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, usage = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == right["chat"].outputs[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == right["chat"].outputs[0].finish_reason
    assert len({chunk.id for chunk in chunks}) == 1
    assert not usage.choices and usage.usage.completion_tokens == len(right["chat"].outputs[0].token_ids)


def test_prompts_come_as_texts_or_ids_one_or_several(client, right):
    text, ids = "def read(path):", right["text"].prompt_token_ids
    expected = right["text"].outputs[0].text
    for prompt in (text, ids, [text, text], [ids, ids]):
        answer = client.completions.create(model="demo", prompt=prompt, temperature=0, max_tokens=24)
        several = 2 if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
        assert [choice.text for choice in answer.choices] == [expected] * several
        assert [choice.index for choice in answer.choices] == list(range(several))
    echoed = client.completions.create(model="demo", prompt=text, temperature=0, max_tokens=24, echo=True)
    assert echoed.choices[0].text == text + expected


def test_several_prompts_are_streamed_side_by_side(client, right):
    prompt = ["def read(path):"] * 3
    texts = ["", "", ""]
    for chunk in client.completions.create(
        model="demo", prompt=prompt, temperature=0, max_tokens=24, stream=True
    ):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [right["text"].outputs[0].text] * 3


def test_parameters_reach_the_sampler(client):
    def ask(**more):
        answer = client.completions.create(model="demo", prompt="def read(path):", max_tokens=8, **more)
        return answer.choices[0]

    assert ask(seed=7).text == ask(seed=7).text
    assert len({ask(seed=seed, temperature=1.5).text for seed in range(6)}) > 1
    assert ask(temperature=0, logit_bias={"300": 100}).text != ask(temperature=0).text
    endless = {"temperature": 0, "extra_body": {"ignore_eos": True}}
    text = ask(**endless).text
    stopped = ask(**endless, stop=[text[2:4]])
    assert (stopped.finish_reason, stopped.text) == ("stop", text[: text.index(text[2:4])])
    assert ask(temperature=0, extra_body={"ignore_eos": True, "min_tokens": 8}).finish_reason == "length"


async def test_many_at_once_through_the_async_client(url, right):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def one(stream):
            answer = await client.chat.completions.create(
                model="demo", messages=QUESTION, temperature=0, max_tokens=24, stream=stream
            )
            if not stream:
                return answer.choices[0].message.content
            return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

        texts = await asyncio.gather(*(one(index % 2 == 0) for index in range(24)))
    assert set(texts) == {right["chat"].outputs[0].text}


def test_models_health_version_and_metrics(client, url):
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"
    by_path = client.completions.create(model=str(DEMO), prompt="def", max_tokens=2)
    assert (
        by_path.model == client.completions.create(model="demo", prompt="def", max_tokens=2).model == "demo"
    )
    with httpx.Client(base_url=url) as http:
        assert http.get("/health").status_code == 200
        assert http.get("/ready").status_code == 200
        assert http.get("/version").json()["version"]
        page = http.get("/metrics").text
    samples = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            sample, value = line.rsplit(" ", 1)
            name = sample.partition("{")[0].removeprefix("pageant:")
            samples[name] = samples.get(name, 0.0) + float(value)
    assert samples["num_requests_running"] == 0
    assert samples["generation_tokens_total"] > 0 and samples["prompt_tokens_total"] > 0
    assert 'finished_reason="length"' in page and samples["request_success_total"] > 0


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FINE = {"messages": QUESTION, "max_tokens": 2}


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "said"),
    [
        (CHAT, b"{", 400, None, "not JSON"),
        (CHAT, b"[1]", 400, None, "Expected `object`"),
        (CHAT, b'{"messages": "\xff"}', 400, None, "the body is not JSON"),
        (CHAT, b'{"messages":' + b"[" * 100_000, 400, None, "nested"),
        (CHAT, {}, 400, "messages", "messages"),
        (CHAT, {"messages": []}, 400, "messages", "at least one"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "messages", "Expected"),
        (
            CHAT,
            {"messages": [{"role": "x", "content": [{"type": "image", "text": ""}]}]},
            400,
            "messages",
            "has no image_url",
        ),
        (CHAT, FINE | {"temperature": "hot"}, 400, "temperature", "Expected"),
        (CHAT, FINE | {"temperature": -1}, 400, "temperature", "temperature"),
        (CHAT, FINE | {"temperature": 1e999}, 400, None, ""),
        (CHAT, FINE | {"max_tokens": 0}, 400, "max_tokens", "from 1 to"),
        (CHAT, FINE | {"max_tokens": 10**30}, 400, "max_tokens", ""),
        (CHAT, FINE | {"stop": ["x"] * 1000}, 400, "stop", "at most 64"),
        (CHAT, FINE | {"logit_bias": {"-5": 1}}, 400, "logit_bias", "logit_bias"),
        (CHAT, FINE | {"n": 200}, 400, "n", "128 choices"),
        (CHAT, FINE | {"model": "other"}, 404, "model", "no model 'other'"),
        (TEXT, {"prompt": []}, 400, "prompt", "expected a text"),
        (TEXT, {"prompt": [-1]}, 400, "prompt", "token id"),
        (TEXT, {"prompt": [1, "a"]}, 400, "prompt", "token id"),
        (TEXT, {"prompt": ["x"] * 5000}, 400, "prompt", "at most 128"),
        (TEXT, {"prompt": "x " * 5000}, 400, "prompt", "max_model_len is 1024"),
        (TEXT, {"prompt": "\ud800"}, 400, None, ""),
        (TEXT, {"prompt": {"a": 1}}, 400, "prompt", "Expected `str | array | null`"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_is_answered_in_openais_shape_and_harms_nobody(
    url, path, body, status, param, said, stream
):
    if isinstance(body, dict):
        body = json.dumps(body | ({"stream": True} if stream else {})).encode()
    with httpx.Client(base_url=url) as http:
        answer = http.post(path, content=body)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert said in error["message"]
        assert param is None or error["param"] == param
        assert "Traceback" not in answer.text and "/" not in error["message"].replace("x/", "")
        assert http.post(CHAT, json=FINE).status_code == 200


def test_fields_without_effect_are_named_in_a_header(url):
    with httpx.Client(base_url=url) as http:
        answer = http.post(CHAT, json=FINE | {"user": "me", "frobnicate": 1})
        assert answer.headers["x-pageant-fields-without-effect"] == "frobnicate"
        assert "x-pageant-fields-without-effect" not in http.post(CHAT, json=FINE).headers
        assert 'field="frobnicate"' in http.get("/metrics").text


def test_other_paths_and_methods_have_the_same_shape(url):
    with httpx.Client(base_url=url) as http:
        assert http.get("/v1/nothing").json()["error"]["type"] == "invalid_request_error"
        assert http.get(CHAT).status_code == 405
        assert http.get("/v1/models/other").status_code == 404


async def until(holds):
    async with asyncio.timeout(120):
        while True:
            if await asyncio.to_thread(holds):
                return


async def test_a_client_that_leaves_takes_its_request_along(session, url):
    long = FINE | {"max_tokens": 900, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        for _ in range(5):
            async with http.stream("POST", CHAT, json=long | {"stream": True}) as stream:
                async for _ in stream.aiter_lines():
                    break
        waiting = [asyncio.create_task(http.post(CHAT, json=long)) for _ in range(5)]
        await until(lambda: session.scheduler_statistics().num_running == 5)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    await until(
        lambda: not (session.scheduler_statistics().num_running or session.pool_statistics().blocks_held)
    )
    counters = session.scheduler_statistics().counters
    assert sum(value for name, value in counters.items() if name.startswith("aborts")) >= 10


def test_half_a_body_and_idle_connections_hold_up_nobody(url):
    host, port = url.removeprefix("http://").split(":")
    held = [socket.create_connection((host, int(port))) for _ in range(200)]
    try:
        for connection in held[:100]:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        held[0].sendall(b"\x00" * 100)
        with httpx.Client(base_url=url) as http:
            assert http.post(CHAT, json=FINE).status_code == 200
    finally:
        for connection in held:
            connection.close()


def test_only_who_has_a_key_is_served_and_unknown_fields_can_be_refused():
    session = start(api_keys=("right", "also right"), strict_fields=True, max_body_mib=1)
    try:
        with httpx.Client(base_url=session.served_at().split()[-1]) as http:
            assert http.post(CHAT, json=FINE).status_code == 401
            assert http.post(CHAT, json=FINE, headers={"authorization": "Bearer wrong"}).status_code == 401
            assert http.get("/metrics").status_code == 401
            assert http.get("/health").status_code == http.get("/ready").status_code == 200
            http.headers["authorization"] = "Bearer also right"
            assert http.post(CHAT, json=FINE).status_code == 200
            refused = http.post(CHAT, json=FINE | {"frobnicate": 1})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "frobnicate")
            assert http.post(TEXT, json={"prompt": "x" * 2**21}).status_code == 413
    finally:
        session.stop()


def test_draining_finishes_what_is_open_and_takes_nothing_more():
    session = start()
    url = session.served_at().split()[-1]
    with httpx.Client(base_url=url, timeout=60) as http:
        body = FINE | {"max_tokens": 300, "ignore_eos": True, "stream": True}
        with http.stream("POST", CHAT, json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            draining = threading.Thread(target=session.drain, args=(60.0,))
            draining.start()
            while http.get("/ready").status_code == 200:
                pass
            assert http.post(CHAT, json=FINE).status_code == 503
            rest = [line for line in lines if line]
        draining.join()
        session.stop()
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(pageant.StartupError, match=f"cannot listen on 127.0.0.1:{port}"):
            start(port=port)
