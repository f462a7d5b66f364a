"""Responses in the background, and what they can be asked for, by OpenAI's own client."""

from __future__ import annotations

import json

import openai
import pytest

import pageant

MODEL = {"model": "demo", "temperature": 0}
ASKED = {"input": "Explain the with statement", **MODEL}
ENDLESS = {"extra_body": {"ignore_eos": True}, "max_output_tokens": 900}
LOGPROBS = "message.output_text.logprobs"


@pytest.fixture(scope="module")
def right(llm):
    """Return what the engine itself answers, with log-probabilities."""
    question = [{"role": "user", "content": ASKED["input"]}]
    return llm.chat([question], pageant.SamplingParams(temperature=0.0, max_tokens=12, logprobs=2))[
        0
    ].outputs[0]


def ended(client, response):
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)
    return response


def kinds(events):
    return [event.type.removeprefix("response.") for event in events]


# In the background.


def test_a_response_in_the_background_begins_queued_and_comes_to_its_end(client, right):
    response = client.responses.create(background=True, max_output_tokens=12, **ASKED)
    assert response.status == "queued" and response.background and not response.output
    found = ended(client, response)
    assert (found.status, found.output_text) == ("incomplete", right.text)
    assert found.usage.output_tokens == 12


def test_a_response_in_the_background_can_be_cancelled(client):
    response = client.responses.create(background=True, **ASKED, **ENDLESS)
    for _ in range(2):  # again does no harm
        assert client.responses.cancel(response.id).status == "cancelled"
    assert ended(client, response).status == "cancelled"
    short = ended(client, client.responses.create(background=True, max_output_tokens=2, **ASKED))
    assert client.responses.cancel(short.id).status == short.status == "incomplete"


def test_only_what_is_in_the_background_can_be_cancelled(client, http):
    whole = client.responses.create(max_output_tokens=2, **ASKED)
    with client.responses.create(stream=True, **ASKED, **ENDLESS) as stream:
        streamed = next(stream).response
        for one in (whole, streamed):
            with pytest.raises(openai.BadRequestError) as refused:
                client.responses.cancel(one.id)
            assert refused.value.param == "response_id"
        assert client.responses.retrieve(streamed.id).status == "in_progress"
    assert http.post("/v1/responses/resp-none/cancel").status_code == 404
    with pytest.raises(openai.BadRequestError):
        client.responses.create(background=True, store=False, **ASKED)


def test_what_goes_wrong_in_the_background_is_found_in_the_response(client):
    response = client.responses.create(background=True, input="word " * 3000, **MODEL)
    found = ended(client, response)
    assert found.status == "failed" and "tokens" in found.error.message
    *_, last = client.responses.create(background=True, stream=True, input="word " * 3000, **MODEL)
    assert last.type == "response.failed" and last.response.error.message == found.error.message


def test_a_response_in_the_background_is_streamed_and_followed_again(client, right):
    asked = {"background": True, "stream": True, "max_output_tokens": 12, **ASKED}
    events = list(client.responses.create(**asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds(events)[:4] == ["created", "queued", "in_progress", "output_item.added"]
    assert [event.response.status for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert "".join(event.delta for event in events if event.type.endswith("text.delta")) == right.text
    name = events[0].response.id
    for after in (None, 0, 5, len(events) - 1):
        more = {} if after is None else {"starting_after": after}
        again = list(client.responses.retrieve(name, stream=True, **more))
        assert again == events[(-1 if after is None else after) + 1 :]
    assert client.responses.retrieve(name) == events[-1].response


def test_a_client_that_leaves_may_come_back_to_what_goes_on_without_it(client):
    asked = {"background": True, "stream": True, **ASKED, **ENDLESS, "max_output_tokens": 40}
    with client.responses.create(**asked) as stream:
        seen = [next(stream) for _ in range(6)]
    rest = list(client.responses.retrieve(seen[0].response.id, stream=True, starting_after=5))
    numbers = [event.sequence_number for event in (*seen, *rest)]
    assert numbers == list(range(len(numbers))) and rest[-1].response.usage.output_tokens == 40


def test_a_stream_in_the_background_ends_when_its_response_is_cancelled_or_deleted(client):
    for use in (client.responses.cancel, client.responses.delete):
        with client.responses.create(background=True, stream=True, **ASKED, **ENDLESS) as stream:
            use(next(stream).response.id)
            *_, last = stream
        assert last.response.status == "cancelled"


def test_only_what_is_streamed_in_the_background_is_followed(client, http):
    for more in ({"background": True}, {"background": False}):
        response = client.responses.create(max_output_tokens=2, **ASKED, **more)
        answer = http.get(f"/v1/responses/{response.id}", params={"stream": "true"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")
    assert http.get("/v1/responses/resp-none", params={"stream": "true"}).status_code == 404


# What a response can have.


def test_log_probabilities_come_where_they_are_included(client, right):
    asked = {"include": [LOGPROBS], "top_logprobs": 2, "max_output_tokens": 12, **ASKED}
    response = client.responses.create(**asked)
    (part,) = response.output[0].content
    assert (response.top_logprobs, part.text) == (2, right.text)
    for entry, token, place in zip(part.logprobs, right.token_ids, right.logprobs, strict=True):
        assert entry.token == place[token].decoded_token
        assert entry.logprob == pytest.approx(place[token].logprob, abs=1e-4)
        assert len(entry.top_logprobs) == 2 and bytes(entry.bytes).decode() == entry.token
    events = list(client.responses.create(stream=True, **asked))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [entry.token for event in deltas for entry in event.logprobs] == [
        one.token for one in part.logprobs
    ]
    assert all("".join(entry.token for entry in event.logprobs) == event.delta for event in deltas)
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert len(done.logprobs) == 12 and events[-1].response.output[0].content[0].logprobs == part.logprobs
    plain = client.responses.create(max_output_tokens=2, **ASKED)
    assert plain.output[0].content[0].logprobs == []


def test_what_is_included_in_vain_is_named(http):
    body = ASKED | {"max_output_tokens": 1}
    body |= {"include": ["reasoning.encrypted_content", "file_search_call.results"], "top_logprobs": 3}
    answer = http.post("/v1/responses", json=body)
    named = answer.headers["x-pageant-fields-without-effect"]
    assert named == "include:file_search_call.results, top_logprobs"
    refused = http.post("/v1/responses", json=body | {"include": [LOGPROBS], "top_logprobs": 21})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "top_logprobs")


@pytest.mark.parametrize(
    "more",
    [
        {"presence_penalty": 1.5, "frequency_penalty": 1.0},
        {"repetition_penalty": 1.4},
        {"logit_bias": {"300": 8.0}},
        {"allowed_token_ids": [300, 301, 302]},
        {"bad_words": [" a", " the"]},
        {"stop": ["t"], "include_stop_str_in_output": True},
        {"min_tokens": 8, "stop_token_ids": [300]},
        {"structured_outputs": {"regex": "[0-9]{3}-x"}},
        {"structured_outputs": {"choice": ["left", "right"]}},
        {"truncate_prompt_tokens": 4, "truncation_side": "left"},
    ],
    ids=lambda more: "-".join(more),
)
def test_a_parameter_means_what_it_means_in_a_chat(http, more):
    question = [{"role": "user", "content": ASKED["input"]}]
    chat = http.post(
        "/v1/chat/completions", json={"messages": question, "max_tokens": 12} | MODEL | more
    ).json()
    response = http.post("/v1/responses", json=ASKED | {"max_output_tokens": 12} | more).json()
    assert response["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_structured_outputs_are_refused_by_the_name_that_they_were_given(http):
    for more, param in (
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "x"}}}}, "text.format"),
        ({"frequency_penalty": 9}, "frequency_penalty"),
    ):
        answer = http.post("/v1/responses", json=ASKED | more)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert "frequency_penalty" in json.dumps(answer.json())


# What a response was made from.


def test_what_a_response_was_made_from_can_be_listed_and_referred_to(client):
    call = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
    said = [
        {"role": "user", "content": "What time is it?"},
        {**call, "id": "fc_mine"},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "It is noon.", "annotations": []}]},
        {"role": "user", "content": "Thanks."},
    ]
    first = client.responses.create(input=said, max_output_tokens=2, **MODEL)
    found = client.responses.input_items.list(first.id, order="asc").data
    assert [item.type for item in found] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
        "message",
    ]
    assert (found[0].content[0].type, found[0].content[0].text) == ("input_text", "What time is it?")
    assert (found[1].id, found[1].name, found[2].output) == ("fc_mine", "now", "noon")
    assert found[3].role == "assistant" and found[3].content[0].text == "It is noon."
    second = client.responses.create(
        input="And now?", previous_response_id=first.id, max_output_tokens=2, **MODEL
    )
    whole = list(client.responses.input_items.list(second.id, order="asc", limit=2))  # page by page
    assert whole[:5] == found and whole[5].id == first.output[0].id
    assert whole[6].content[0].text == "And now?" and len(whole) == 7
    # Unless it is asked otherwise, the latest comes first.
    assert list(client.responses.input_items.list(second.id, limit=4)) == whole[::-1]
    referring = [{"type": "item_reference", "id": one.id} for one in whole]
    referring[1] = said[1]  # whose id is the client's own
    again = client.responses.create(input=referring, max_output_tokens=2, **MODEL)
    assert again.usage.input_tokens == second.usage.input_tokens


def test_a_page_of_items_has_its_bounds_and_what_is_asked_wrongly_is_refused(client, http):
    twice = [{"role": "user", "content": "Hi", "id": "same"}] * 3
    response = client.responses.create(input=twice, max_output_tokens=1, **MODEL)
    url = f"/v1/responses/{response.id}/input_items"
    page = http.get(url, params={"limit": 2}).json()
    assert (len(page["data"]), page["has_more"], page["object"]) == (2, True, "list")
    rest = http.get(url, params={"limit": 2, "after": page["last_id"]}).json()
    assert (len(rest["data"]), rest["has_more"], rest["last_id"]) == (1, False, "same")
    end = http.get(url, params={"after": rest["last_id"]}).json()
    assert end["data"] == [] and end["last_id"] is None
    for params, name in (({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"after": "none"}, "after")):
        answer = http.get(url, params=params)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    for params in ({"order": "up"}, {"limit": "x"}):
        assert http.get(url, params=params).status_code == 400
    assert http.get("/v1/responses/resp-none/input_items").status_code == 404
    client.responses.delete(response.id)
    assert http.get(url).status_code == 404
