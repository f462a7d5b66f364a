"""Beam search over HTTP: the beams of the engine, and searches that end early."""

from __future__ import annotations

import threading

import pytest

import pageant
from tests.integration.serving.asking import CHAT, PROMPT, QUESTION, TEXT, post, streamed


@pytest.mark.parametrize("more", [{}, {"length_penalty": 0.0}, {"early_stopping": True, "n": 7}])
def test_beams_are_those_of_the_engine(http, llm, more):
    asked = {"n": 3, "max_tokens": 6, "use_beam_search": True} | more
    search = {
        name: asked[name] for name in ("max_tokens", "length_penalty", "early_stopping") if name in asked
    }
    beams = pageant.BeamSearchParams(beam_width=asked["n"], **search)
    prompts = [PROMPT, "def read(path):"]
    right = llm.beam_search(prompts, beams)
    told = post(http, TEXT, prompt=prompts, temperature=0.0, return_token_ids=True, **asked)
    expected = [beam for output in right for beam in output.sequences]
    assert [choice["token_ids"] for choice in told["choices"]] == [beam.token_ids for beam in expected]
    assert [(c["text"], c["finish_reason"]) for c in told["choices"]] == [
        (beam.text, beam.finish_reason) for beam in expected
    ]
    assert [choice["index"] for choice in told["choices"]] == [*range(len(expected))]
    assert told["usage"]["prompt_tokens"] == sum(len(output.prompt_token_ids) for output in right)
    assert told["usage"]["completion_tokens"] == sum(len(beam.token_ids) for beam in expected)
    texts = [""] * len(expected)
    for chunk in streamed(http, TEXT, prompt=prompts, **asked):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [beam.text for beam in expected]


def test_a_chats_beams_are_those_of_its_prompt(http, llm):
    asked = {"messages": QUESTION, "max_tokens": 6, "n": 4, "use_beam_search": True}
    told = post(http, CHAT, **asked, return_token_ids=True)
    search = pageant.BeamSearchParams(beam_width=4, max_tokens=6)
    (right,) = llm.beam_search([told["prompt_token_ids"]], search)
    assert [choice["message"]["content"] for choice in told["choices"]] == [
        beam.text for beam in right.sequences
    ]
    header = "x-pageant-fields-without-effect"
    assert http.post(CHAT, json=asked | {"top_p": 0.5, "seed": 1}).headers[header] == "seed, top_p"
    assert (
        http.post(CHAT, json={"messages": QUESTION, "length_penalty": 1.0}).headers[header]
        == "length_penalty"
    )


def test_a_search_ends_when_its_time_is_over_and_when_it_is_aborted(http, session):
    asked = {"prompt": PROMPT, "n": 4, "max_tokens": 500, "use_beam_search": True, "ignore_eos": True}
    choices = post(http, TEXT, **asked, deadline=0.2)["choices"]
    assert {choice["finish_reason"] for choice in choices} == {"abort"} and len(choices) <= 4
    found = []
    asking = threading.Thread(target=lambda: found.append(post(http, TEXT, **asked, request_id="searched")))
    asking.start()
    while http.post("/abort_requests", json={"request_ids": ["searched"]}).status_code == 404:
        pass
    asking.join()
    assert {choice["finish_reason"] for choice in found[0]["choices"]} == {"abort"}
    assert session.scheduler_statistics().num_running == 0
