"""Models of one server that are loaded when requests come for them, one at a time."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import pageant
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of

from .conftest import DEMO, SMALL

PROMPT = [5, 6, 7, 8]
LENGTH = 12


@pytest.fixture(scope="module")
def right(llm, make_checkpoint):
    params = pageant.SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
    demo = llm.generate([PROMPT], params)[0].outputs[0].token_ids
    return {"demo": demo, "other": make_checkpoint("qwen3").greedy(PROMPT, LENGTH)}


@pytest.fixture(scope="module")
def session(make_checkpoint, tmp_path_factory):
    torn = tmp_path_factory.mktemp("torn") / "model"
    shutil.copytree(make_checkpoint("llama").path, torn)
    models = {
        "demo": {"model": str(DEMO)},
        "other": {"model": str(make_checkpoint("qwen3").path)},
        "torn": {"model": str(torn)},
    }
    rules = {"max_loaded_models": 1, "min_loaded_seconds": 0.0}
    actors = {"http": {"options": {"port": 0, "admin_routes": True}}}
    session = Session(topology_of(None, None, SMALL | {"models": models, "actors": actors} | rules))
    session.start()
    (torn / "model.safetensors").unlink()
    yield session
    session.stop()


@pytest.fixture
def http(session):
    with httpx.Client(base_url=session.served_at().split()[-1], timeout=120) as http:
        yield http


def ask(http, model, **more):
    settings = {"temperature": 0, "max_tokens": LENGTH, "ignore_eos": True, "return_token_ids": True}
    return http.post("/v1/completions", json={"model": model, "prompt": PROMPT} | settings | more)


def tokens(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


def loaded(http):
    return {one["id"] for one in http.get("/v1/models").json()["data"] if one["loaded"]}


def test_a_request_has_its_model_loaded_and_the_other_gives_way(http, right):
    assert loaded(http) == set(), "none is, before anybody asks"
    assert http.get("/health").status_code == http.get("/ready").status_code == 200
    for model in ("demo", "other", "other", "demo"):
        assert tokens(ask(http, model)) == right[model]
        assert loaded(http) == {model}
        assert http.get("/health").status_code == 200


def test_the_error_of_a_model_that_cannot_be_loaded_reaches_its_own_requests_alone(http, right, caplog):
    with ThreadPoolExecutor() as pool:
        answers = {model: pool.submit(ask, http, model) for model in ("torn", "demo", "other")}
        refused = answers.pop("torn").result()
        for model, answer in answers.items():
            assert tokens(answer.result()) == right[model]
    assert refused.status_code == 503
    error = refused.json()["error"]
    assert error["message"] == "the model 'torn' cannot be loaded", "paths are nobody's business"
    assert error["code"] == "model_not_loaded"
    assert "torn/executor/0" in caplog.text and "no weights; expected model.safetensors" in caplog.text
    assert tokens(ask(http, "demo")) == right["demo"]


def test_two_models_take_turns_under_requests_for_both(http, right):
    with ThreadPoolExecutor(8) as pool:
        asked = [(model, pool.submit(ask, http, model)) for model in ("demo", "other") * 8]
        for model, answer in asked:
            assert tokens(answer.result()) == right[model]


def test_a_busy_model_gives_way_when_its_turn_is_over(http, right):
    """Requests for the one never cease until the other's has been answered."""
    answered = threading.Event()

    def ask_on() -> int:
        count = 0
        while not answered.is_set():
            assert tokens(ask(http, "demo", max_tokens=100))[:LENGTH] == right["demo"]
            count += 1
        return count

    tokens(ask(http, "demo"))
    with ThreadPoolExecutor(3) as pool:
        busy = [pool.submit(ask_on) for _ in range(3)]
        try:
            assert tokens(ask(http, "other")) == right["other"]
        finally:
            answered.set()
        assert all(one.result() for one in busy)


def test_a_stream_ends_before_its_model_gives_way(http, right):
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    with (
        http.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream,
        ThreadPoolExecutor() as pool,
    ):
        lines = stream.iter_lines()
        first = next(line for line in lines if line.startswith("data: {"))
        other = pool.submit(ask, http, "other")
        told = [first, *(line for line in lines if line.startswith("data: "))]
        assert told[-1] == "data: [DONE]" and '"finish_reason":"length"' in told[-2]
        assert tokens(other.result()) == right["other"]


def test_a_request_waits_on_when_the_lifecycle_actor_dies_meanwhile(session, http, right):
    tokens(ask(http, "demo"))
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, http, "other")
        lifecycle = session._cluster.node.cells["lifecycle"]
        session._thread.call(lifecycle.crash, RuntimeError("the sprocket broke"))
        assert tokens(answer.result()) == right["other"]
    assert tokens(ask(http, "demo")) == right["demo"]


def test_operators_load_and_unload_under_the_same_rule(http, right):
    tokens(ask(http, "demo"))
    assert http.post("/wake_up?model=other").json() == {"status": "awake"}
    assert loaded(http) == {"other"}
    assert http.post("/sleep?model=other").json() == {"status": "asleep"}
    assert loaded(http) == set()
    assert tokens(ask(http, "other")) == right["other"]


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ({"max_loaded_models": 0}, "max_loaded_models: found 0; expected at least 1"),
        ({"max_loaded_models": 1, "while_asleep": "refuse"}, "expected wait"),
        ({"max_loaded_models": 1, "start_asleep": False}, "2 models start awake"),
        ({"max_loaded_models": 1, "min_loaded_seconds": -1.0}, "min_loaded_seconds"),
    ],
)
def test_what_cannot_be_meant_is_refused(make_checkpoint, rules, complaint):
    models = {"demo": {"model": str(DEMO)}, "other": {"model": str(make_checkpoint("qwen3").path)}}
    with pytest.raises(pageant.TopologyError, match=complaint):
        Session(topology_of(None, None, SMALL | {"models": models} | rules))


async def test_an_engine_loads_its_model_with_the_first_request(make_checkpoint):
    checkpoint = make_checkpoint("qwen3")
    params = pageant.SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
    async with pageant.Engine(checkpoint.path, max_loaded_models=1, **SMALL) as engine:
        assert await engine.is_sleeping()
        output = await engine.complete(PROMPT, params)
        assert output.outputs[0].token_ids == checkpoint.greedy(PROMPT, LENGTH)
        assert not await engine.is_sleeping()
