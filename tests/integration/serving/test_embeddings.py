"""Embeddings, classes and scores over HTTP, by the clients that people use."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from pageant.actors.client.cast import HTTP
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of
from tests.pooled_models import save_model

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10"]
SMALL = {"placement": "one", "threads": 1, "dtype": "float32", "served_model_name": "m", "max_num_seqs": 8}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Starts servers, one for each kind of model."""
    sessions: dict[str, Session] = {}

    def start(kind: str) -> str:
        if kind not in sessions:
            folder = tmp_path_factory.mktemp(kind)
            save_model(folder, kind, pooling="mean" if kind == "bert" else None)
            settings = SMALL | {"actors": {HTTP: {"options": {"port": 0}}}}
            sessions[kind] = Session(topology_of(Path(folder), None, settings))
            sessions[kind].start()
        return sessions[kind].served_at().split()[-1]

    yield start
    for session in sessions.values():
        session.stop()


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=60)


def test_the_openai_client_gets_the_same_as_floats_and_as_base64(url: Callable[[str], str]) -> None:
    with openai.OpenAI(base_url=f"{url('bert')}/v1", api_key="none", max_retries=0) as client:
        usual = client.embeddings.create(model="m", input=TEXTS)
        floats = client.embeddings.create(model="m", input=TEXTS, encoding_format="float")
        by_ids = client.embeddings.create(model="m", input=[[2, 8, 9, 10, 3]])
    assert [one.index for one in usual.data] == [0, 1, 2]
    for one, other in zip(usual.data, floats.data, strict=True):
        assert len(one.embedding) == 64
        np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-6)  # other rows may be beside it
    np.testing.assert_allclose(by_ids.data[0].embedding, usual.data[0].embedding, atol=1e-6)
    assert usual.usage.prompt_tokens == usual.usage.total_tokens == 5 + 3 + 8


def test_base64_is_written_as_it_is_read(url: Callable[[str], str]) -> None:
    raw = post(url("bert"), "/v1/embeddings", model="m", input="w1", encoding_format="base64").json()
    plain = post(url("bert"), "/pooling", model="m", input="w1").json()
    decoded = np.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(decoded, np.float32(plain["data"][0]["data"]))


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/v1/embeddings", {"input": []}, "input is empty"),
        ("/v1/embeddings", {"input": ""}, "input is empty"),
        ("/v1/embeddings", {"input": ["w1", ""]}, "input[1]: input is empty"),
        ("/v1/embeddings", {"input": ["w1"] * 3000}, "input has 3000 texts; at most 2048"),
        ("/v1/embeddings", {"input": "w1", "dimensions": 8}, "not made for vectors that are cut"),
        ("/v1/embeddings", {"input": "w1 " * 200}, "at most 130 are taken"),
        ("/v1/embeddings", {"input": [[1, 2, 999]]}, "expected a token id from 0 to 159"),
        ("/v1/embeddings", {"input": "w1", "truncate_prompt_tokens": 1}, "leave no room"),
        ("/v1/embeddings", {"input": "w1", "prompt_name": "query"}, "prompt_name is 'query'"),
        ("/v1/embeddings", {"input": {"a": 1}}, "input"),
        ("/classify", {"input": "w1"}, "this model does embed"),
        ("/v1/completions", {"prompt": "w1"}, "embeds texts and generates none"),
        ("/rerank", {"query": "w1", "documents": []}, "documents is empty"),
        ("/rerank", {"query": "w1", "documents": ["w2"], "top_n": 0}, "top_n is 0"),
        ("/rerank", {"query": "w1", "documents": ["w2"], "max_tokens_per_doc": 3}, "max_tokens_per_doc"),
        ("/score", {"text_1": ["w1", "w2"], "text_2": ["w3"]}, "text_1 has 2 texts"),
        ("/score", {"text_1": "w1"}, "expected one of text_2"),
    ],
)
def test_bad_input_is_refused_in_words(url: Callable[[str], str], path: str, body: Any, why: str) -> None:
    answer = post(url("bert"), path, model="m", **body)
    assert answer.status_code == 400, answer.text
    assert why in answer.json()["error"]["message"]


def test_a_long_text_is_cut_where_asked(url: Callable[[str], str]) -> None:
    long = " ".join(["w1"] * 200)
    for cut, count in ((-1, 130), (20, 20)):
        answer = post(url("bert"), "/v1/embeddings", model="m", input=long, truncate_prompt_tokens=cut).json()
        assert answer["usage"]["prompt_tokens"] == count


def test_documents_are_ranked_for_the_clients_of_cohere_and_jina(url: Callable[[str], str]) -> None:
    documents = ["w4 w5", "w6", "w7 w8 w9"]
    server = url("bert_pairs")
    scores = post(server, "/score", model="m", text_1="w1", text_2=documents).json()["data"]
    by_score = sorted(scores, key=lambda one: -one["score"])
    jina = post(server, "/v1/rerank", model="m", query="w1", documents=documents, top_n=2).json()
    assert [one["index"] for one in jina["results"]] == [one["index"] for one in by_score[:2]]
    first = jina["results"][0]
    assert first["document"]["text"] == documents[first["index"]]
    assert first["relevance_score"] == pytest.approx(by_score[0]["score"], abs=1e-6)
    cohere = post(server, "/v2/rerank", model="m", query="w1", documents=[{"text": one} for one in documents])
    results = cohere.json()["results"]
    assert [one["index"] for one in results] == [one["index"] for one in by_score]
    assert "document" not in results[0] and jina["usage"]["total_tokens"] > 0
    short = post(
        server, "/rerank", model="m", query="w1", documents=["w7 w8 w9"], max_tokens_per_doc=1, top_n=1
    ).json()
    assert short["usage"]["total_tokens"] == 5
    long = " ".join(["w7"] * 30_000)
    cut = post(server, "/rerank", model="m", query="w1", documents=[long], max_tokens_per_doc=9).json()
    assert cut["usage"]["total_tokens"] == 13


def test_classes_have_labels(url: Callable[[str], str]) -> None:
    answer = post(url("bert_labels"), "/classify", model="m", input=TEXTS).json()
    for one in answer["data"]:
        assert one["num_classes"] == 3 and sum(one["probs"]) == pytest.approx(1, abs=1e-5)
        assert one["label"] == f"LABEL_{int(np.argmax(one['probs']))}"
    refused = post(url("bert_labels"), "/v1/embeddings", model="m", input="w1")
    assert refused.status_code == 400 and "this model does classify" in refused.json()["error"]["message"]
