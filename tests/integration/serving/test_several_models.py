"""Several models behind one server, each with a cast of its own."""

from __future__ import annotations

import httpx
import openai
import pytest

import pageant
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of

from .conftest import DEMO, SMALL

TEXT = "/v1/completions"
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module", params=["auto", "always"], ids=lambda wire: f"wire-{wire}")
def both(request, make_checkpoint):
    models = {
        "demo": {"model": str(DEMO)},
        "other": {"model": str(make_checkpoint("qwen3").path), "served_model_name": "lab/other-1.5"},
    }
    actors = {"http": {"options": {"port": 0}}}
    topology = topology_of(None, None, SMALL | {"models": models, "actors": actors, "wire": request.param})
    session = Session(topology)
    session.start()
    yield session
    session.stop()


@pytest.fixture
def http(both):
    with httpx.Client(base_url=both.served_at().split()[-1], timeout=60) as http:
        yield http


def client_of(http):
    return openai.OpenAI(base_url=str(http.base_url.join("/v1")), api_key="none", max_retries=0)


def ask(http, model, **more):
    body = {
        "prompt": PROMPT,
        "temperature": 0,
        "max_tokens": 12,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    return http.post(TEXT, json=body | ({"model": model} if model else {}) | more)


def test_each_is_found_by_its_name_and_none_is_the_first(both, http, llm, make_checkpoint):
    params = pageant.SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    demo = llm.generate([PROMPT], params)[0].outputs[0].token_ids
    other = make_checkpoint("qwen3").greedy(PROMPT, 12)
    assert demo != other
    for model, right in (("demo", demo), ("lab/other-1.5", other), (None, demo)):
        answer = ask(http, model).json()
        assert (answer["model"], answer["choices"][0]["token_ids"]) == (model or "demo", right)
    with client_of(http) as client:
        asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
        chunks = list(client.completions.create(model="lab/other-1.5", stream=True, **asked))
    assert {chunk.model for chunk in chunks} == {"lab/other-1.5"}
    text = ask(http, "lab/other-1.5").json()["choices"][0]["text"]
    assert "".join(chunk.choices[0].text for chunk in chunks) == text


def test_what_a_model_takes_is_its_own(both, http, make_checkpoint):
    with client_of(http) as client:
        assert [model.id for model in client.models.list()] == ["demo", "lab/other-1.5"]
        assert client.models.retrieve("lab/other-1.5").id == "lab/other-1.5"
    vocab_size = make_checkpoint("qwen3").vocab_size
    beyond = ask(http, "lab/other-1.5", prompt=[vocab_size])
    assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, "prompt")
    assert ask(http, "demo", prompt=[vocab_size]).status_code == 200
    missing = ask(http, "other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    counts = {
        model: http.post("/tokenize", json={"model": model, "prompt": "Hello"}).json()["count"]
        for model in ("demo", "lab/other-1.5")
    }
    assert counts["lab/other-1.5"] == 5 > counts["demo"]  # its tokens are bytes


def test_all_of_them_are_watched(both, http):
    ask(http, "demo"), ask(http, "lab/other-1.5")
    assert http.get("/health").status_code == http.get("/ready").status_code == 200
    page = http.get("/metrics").text
    for model in ("demo", "lab/other-1.5"):
        assert f'pageant:num_requests_running{{model_name="{model}",engine="0"}} 0' in page
        assert f'pageant:request_success_total{{model_name="{model}",actor="http"' in page


def test_the_engine_itself_speaks_to_the_first(both):
    assert both.model_name == "demo"
    assert both.pool_statistics().num_blocks > 0
    assert both.scheduler_statistics().num_running == 0


def test_the_death_of_an_executor_is_felt_by_its_own_model_alone(both, http):
    """Kill one model's executor: its streams pause, and go on with the tokens that they would have had."""
    long = {"max_tokens": 200}
    right = ask(http, "demo", **long).json()["choices"][0]["text"]
    executor = both._cluster.node.cells["demo/executor/0"]
    with client_of(http) as client:
        chunks = client.completions.create(
            model="demo", prompt=PROMPT, temperature=0, stream=True, extra_body={"ignore_eos": True}, **long
        )
        told = [next(chunks).choices[0].text for _ in range(3)]
        both._thread.call(executor.crash, RuntimeError("the sprocket broke"))
        assert ask(http, "lab/other-1.5").status_code == 200
        told += [chunk.choices[0].text for chunk in chunks]
    assert "".join(told) == right
    incarnations = {
        name: actor.incarnation for node in both.statistics() for name, actor in node.actors.items()
    }
    assert incarnations["demo/executor/0"] == 2 and incarnations["other/executor/0"] == 1


@pytest.fixture(scope="module")
def two(make_checkpoint):
    other = {"model": str(make_checkpoint("qwen3").path), "served_model_name": "lab/other-1.5"}
    return SMALL | {"models": {"demo": {"model": str(DEMO)}, "other": other}}


@pytest.mark.parametrize("name", ["other", "lab/other-1.5"])
def test_an_engine_speaks_to_the_model_that_is_named(two, name, make_checkpoint):
    params = pageant.SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with pageant.LLM(name, topology=two, progress=False) as llm:
        (output,) = llm.generate([PROMPT], params)
        assert output.outputs[0].token_ids == make_checkpoint("qwen3").greedy(PROMPT, 12)
        assert llm.scheduler_statistics().counters["ended"] == 1
        with pytest.raises(pageant.BadRequest):
            llm.generate([[make_checkpoint("qwen3").vocab_size]])


@pytest.mark.parametrize(
    ("name", "complaint"),
    [(None, "'demo', 'other'"), ("othr", "other"), (str(DEMO), "'demo'|lab/other-1.5")],
)
def test_of_several_models_one_has_to_be_named(two, name, complaint):
    for kind in (pageant.LLM, pageant.Engine):
        with pytest.raises(pageant.TopologyError, match=complaint):
            kind(name, topology=two)
