"""Routes beside the families of OpenAI's and Anthropic's: what a server is, and what it does not serve."""

from __future__ import annotations

import asyncio
import json
from html.parser import HTMLParser
from pathlib import Path

import httpx
import openai
import pytest

import pageant
from pageant.actors.runtime.version import VERSION

DEMO = Path(pageant.__file__).parent / "models" / "demo"
CHAT = "/v1/chat/completions"
QUESTIONS = ["Explain the with statement", "What is a list?", "Say hello"]
TURNS = [[{"role": "user", "content": question}] for question in QUESTIONS]


def post(http, path, **body):
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(http, path, status=400, **body):
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


# What a server is.


def test_the_index_lists_what_is_served(http):
    index = http.get("/").json()
    assert (index["name"], index["version"], index["models"]) == ("Pageant", VERSION, ["demo"])
    assert {CHAT, "/v1/responses", "/v1/messages", "/docs"} <= {*index["routes"]}
    assert http.get("/version").json() == {"version": VERSION}


def test_the_documentation_has_every_operation_and_no_script(http):
    class Reader(HTMLParser):
        tags, texts = set(), []

        def handle_starttag(self, tag, attrs):
            self.tags.add(tag)

        def handle_data(self, data):
            self.texts.append(data)

    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    reader = Reader()
    reader.feed(page.text)
    assert "script" not in reader.tags and "link" not in reader.tags
    for path, methods in http.get("/openapi.json").json()["paths"].items():
        assert path in reader.texts and {*map(str.upper, methods)} <= {*reader.texts}


def test_a_server_tells_its_models_its_devices_and_its_load(http, url):
    info = http.get("/server_info").json()
    (model,) = info["models"]
    assert (model["name"], info["version"]) == ("demo", VERSION)
    assert model["max_model_len"] == http.get("/v1/models").json()["data"][0]["max_model_len"]
    assert model["devices"][0]["device"] == "cpu" and model["devices"][0]["num_blocks"] > 0
    assert {"scheduler", "http"} <= {actor["name"] for actor in info["actors"] if actor["up"]}
    assert http.get("/load").json() == {"server_load": 0}
    long = {"messages": TURNS[0], "max_tokens": 900, "ignore_eos": True, "stream": True}
    with http.stream("POST", CHAT, json=long) as answer:
        lines = answer.iter_lines()
        while "content" not in next(lines).replace('"content":""', ""):
            pass
        assert http.get("/load").json() == {"server_load": 1}
    assert url


def test_a_ping_is_a_question_of_health(http, start):
    assert http.get("/ping").status_code == http.post("/ping").status_code == 200
    keyed = start(api_keys=("secret",)).served_at().split()[-1]
    assert httpx.get(f"{keyed}/ping", timeout=60).status_code == 200
    assert httpx.get(f"{keyed}/load").status_code == 401


def test_a_tokenizers_configuration_is_told(http):
    told = http.get("/tokenizer_info").json()
    on_disk = json.loads((DEMO / "tokenizer_config.json").read_text())
    assert {name: told[name] for name in on_disk if name != "chat_template"} == {
        name: value for name, value in on_disk.items() if name != "chat_template"
    }
    assert "{%" in told["chat_template"]
    assert http.get("/tokenizer_info", params={"model": "demo"}).json() == told
    assert http.get("/tokenizer_info", params={"model": "other"}).status_code == 404


def test_invocations_are_chats_and_completions(http):
    chat = {"messages": TURNS[0], "max_tokens": 4, "temperature": 0}
    text = {"prompt": QUESTIONS[0], "max_tokens": 4, "temperature": 0}
    for path, body in ((CHAT, chat), ("/v1/completions", text)):
        expected, found = post(http, path, **body), post(http, "/invocations", **body)
        assert [one | {"logprobs": None} for one in expected["choices"]] == found["choices"]
        assert expected["object"] == found["object"]
    with http.stream("POST", "/invocations", json=chat | {"stream": True}) as answer:
        assert list(answer.iter_lines())[-2] == "data: [DONE]"
    assert refused(http, "/invocations", input="Hi")["param"] == "messages"
    assert refused(http, "/invocations", prompt="Hi", temperature=-1)["param"] == "temperature"


# Several conversations at once.


def test_a_batch_has_a_choice_for_each_conversation(http):
    asked = {"max_tokens": 12, "temperature": 0}
    alone = [post(http, CHAT, messages=turns, **asked) for turns in TURNS]
    batch = post(http, f"{CHAT}/batch", messages=TURNS, **asked)
    assert [choice["index"] for choice in batch["choices"]] == [0, 1, 2]
    assert [choice["message"] for choice in batch["choices"]] == [
        one["choices"][0]["message"] for one in alone
    ]
    for name in ("prompt_tokens", "completion_tokens"):
        assert batch["usage"][name] == sum(one["usage"][name] for one in alone)
    assert batch["object"] == "chat.completion"


def test_a_batch_takes_the_parameters_of_chats(http):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema |= {"additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    asked = {"response_format": form, "max_tokens": 60, "seed": 3, "logprobs": True, "top_logprobs": 1}
    for choice in post(http, f"{CHAT}/batch", messages=TURNS, **asked)["choices"]:
        assert json.loads(choice["message"]["content"])["a"] in (1, 2)
        assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 1
    begun = [[*turns, {"role": "assistant", "content": f"{i}:"}] for i, turns in enumerate(TURNS)]
    going_on = {"add_generation_prompt": False, "continue_final_message": True, "echo": True, "max_tokens": 2}
    for i, choice in enumerate(post(http, f"{CHAT}/batch", messages=begun, **going_on)["choices"]):
        assert choice["message"]["content"].startswith(f"{i}:")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [[]]}, "messages"),
        ({"messages": TURNS[0]}, "messages"),
        ({"messages": TURNS * 50}, "n"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_what_a_batch_does_not_take_is_refused_by_name(http, fields, param):
    assert refused(http, f"{CHAT}/batch", **{"messages": TURNS, "max_tokens": 2} | fields)["param"] == param


async def test_a_client_that_leaves_takes_its_batch_along(session, url):
    async with httpx.AsyncClient(base_url=url) as http, asyncio.timeout(30):
        long = {"messages": TURNS, "max_tokens": 900, "ignore_eos": True}
        asking = asyncio.create_task(http.post(f"{CHAT}/batch", json=long))
        for load in (1, 0):
            while (await http.get("/load")).json()["server_load"] != load:
                pass
            asking.cancel()
    assert session.scheduler_statistics().num_running == 0


# What is not served.

UNSERVED = [
    *("/v1/audio/speech", "/v1/images/generations"),
    *(
        "/v1/images/edits",
        "/v1/files",
        "/v1/files/file-1/content",
        "/v1/batches",
        "/v1/moderations",
        "/api/chat",
    ),
]


@pytest.mark.parametrize("path", UNSERVED)
def test_a_known_route_that_is_not_served_says_so_and_what_is(http, path):
    for answer in (http.post(path, json={"model": "demo", "input": "Hi"}), http.get(path)):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (404, "not_served")
        assert "this server has no" in error["message"] and "/v1/c" in error["message"]
    form = http.post(path, files={"file": ("a.wav", b"x")}, data={"model": "demo"})
    assert form.json()["error"]["code"] == "not_served"


def test_clients_of_routes_that_are_not_served_are_told_so(client):
    with pytest.raises(openai.BadRequestError, match="this model generates text; it neither embeds"):
        client.embeddings.create(model="demo", input="Hi")
    with pytest.raises(openai.NotFoundError, match="no images"):
        client.images.generate(model="demo", prompt="A cat")


def test_a_path_that_is_none_is_answered_with_the_nearest(http):
    for path, hint in (
        ("/v1/v1/chat/completions", "/v1 twice: expected /v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/nothing/like/it", "GET / lists"),
    ):
        assert hint in refused(http, path, 404)["message"]
    wrong = http.get(CHAT)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "OPTIONS, POST")
    assert "GET is no method of '/v1/chat/completions'" in wrong.json()["error"]["message"]
    assert http.get("/v1/messages/nothing").json()["error"]["type"] == "not_found_error"
