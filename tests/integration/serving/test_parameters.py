"""Parameters of completions and chats, beside what the engine itself answers."""

from __future__ import annotations

import json

import httpx
import pytest
from tokenizers import Tokenizer

from tests.integration.serving.asking import (
    CHAT,
    DEMO,
    MESSAGES,
    PROMPT,
    QUESTION,
    RESPONSES,
    TEXT,
    params,
    post,
    streamed,
)


def test_n_choices_are_the_samples_of_the_engine(http, llm):
    expected = llm.generate([PROMPT], params(n=3, seed=11, temperature=1.2))[0]
    asked = {"prompt": PROMPT, "max_tokens": 12, "n": 3, "seed": 11, "temperature": 1.2}
    whole = post(http, TEXT, **asked)
    assert [choice["text"] for choice in whole["choices"]] == [one.text for one in expected.outputs]
    assert whole["usage"]["prompt_tokens"] == len(expected.prompt_token_ids)
    assert whole["usage"]["completion_tokens"] == sum(len(one.token_ids) for one in expected.outputs)
    texts = ["", "", ""]
    for chunk in streamed(http, TEXT, **asked):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [one.text for one in expected.outputs]
    two = post(http, TEXT, **asked | {"prompt": [PROMPT, PROMPT], "n": 2})
    assert [choice["index"] for choice in two["choices"]] == [0, 1, 2, 3]
    assert len({one.text for one in expected.outputs}) == 3
    assert [choice["text"] for choice in two["choices"]] == [one.text for one in expected.outputs[:2]] * 2


def test_best_of_returns_the_likeliest(http, llm):
    expected = llm.generate([PROMPT], params(n=2, best_of=5, seed=3, temperature=1.5))[0]
    best = post(http, TEXT, prompt=PROMPT, max_tokens=12, n=2, best_of=5, seed=3, temperature=1.5)
    assert [choice["text"] for choice in best["choices"]] == [one.text for one in expected.outputs]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert best["choices"][0]["logprobs"] is None


def test_logprobs_of_a_completion(http, llm):
    expected = llm.generate([PROMPT], params(temperature=0.0, logprobs=3))[0].outputs[0]
    choice = post(http, TEXT, prompt=PROMPT, max_tokens=12, temperature=0, logprobs=3)["choices"][0]
    told = choice["logprobs"]
    for index, (token, place) in enumerate(zip(expected.token_ids, expected.logprobs, strict=True)):
        assert told["tokens"][index] == place[token].decoded_token
        assert told["token_logprobs"][index] == pytest.approx(place[token].logprob, abs=1e-4)
        assert len(told["top_logprobs"][index]) == len({one.decoded_token for one in place.values()})
        begins = told["text_offset"][index]
        assert choice["text"][begins:].startswith(told["tokens"][index])
    pieces = streamed(http, TEXT, prompt=PROMPT, max_tokens=12, temperature=0, logprobs=3)
    parts = [chunk["choices"][0]["logprobs"] for chunk in pieces]
    for name in ("tokens", "text_offset"):
        assert [value for part in parts for value in part[name]] == told[name]


def test_tokens_begin_where_they_do_though_their_text_is_held_back(http, llm):
    text = llm.generate([PROMPT], params(temperature=0.0))[0].outputs[0].text
    asked = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 0}
    asked["stop"] = [text[at : at + 4] + "\0" for at in range(len(text) - 4)]  # nearly comes, and does not
    told = post(http, TEXT, **asked)["choices"][0]["logprobs"]
    parts = [chunk["choices"][0]["logprobs"] for chunk in streamed(http, TEXT, **asked)]
    assert [offset for part in parts for offset in part["text_offset"]] == told["text_offset"]


def test_logprobs_of_a_chat(http, llm):
    expected = llm.chat([QUESTION], params(temperature=0.0, logprobs=2))[0].outputs[0]
    asked = {"messages": QUESTION, "max_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    told = post(http, CHAT, **asked)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in told] == [
        place[token].decoded_token for token, place in zip(expected.token_ids, expected.logprobs, strict=True)
    ]
    assert all(len(entry["top_logprobs"]) == 2 for entry in told)
    assert all(entry["top_logprobs"][0]["logprob"] >= entry["logprob"] for entry in told)
    assert bytes(told[0]["bytes"]).decode() == told[0]["token"]
    chunks = [chunk["choices"][0] for chunk in streamed(http, CHAT, **asked)]
    parts = [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]]
    assert [entry["token"] for entry in parts] == [entry["token"] for entry in told]
    ids = post(http, CHAT, **asked | {"return_tokens_as_token_ids": True})
    shown = [entry["token"] for entry in ids["choices"][0]["logprobs"]["content"]]
    assert shown == [f"token_id:{token}" for token in expected.token_ids]


def test_listed_tokens_have_their_log_probabilities(http, llm):
    listed = [300, 5]
    expected = llm.generate([PROMPT], params(temperature=0.0, logprob_token_ids=listed))[0].outputs[0]
    asked = {
        "max_tokens": 12,
        "temperature": 0,
        "logprob_token_ids": listed,
        "return_tokens_as_token_ids": True,
    }
    told = post(http, TEXT, prompt=PROMPT, logprobs=0, **asked)["choices"][0]["logprobs"]
    for place, found in zip(expected.logprobs, told["top_logprobs"], strict=True):
        assert [*found] == [f"token_id:{token}" for token in place]
        right = [max(one.logprob, -9999.0) for one in place.values()]
        assert [*found.values()] == pytest.approx(right, abs=1e-4)
    chat = {"messages": QUESTION, "logprobs": True, **asked}
    expected = llm.chat([QUESTION], params(temperature=0.0, logprob_token_ids=listed))[0].outputs[0]
    chunks = streamed(http, CHAT, **chat)
    parts = [c["choices"][0]["logprobs"]["content"] for c in chunks if c["choices"][0]["logprobs"]]
    whole = post(http, CHAT, **chat)["choices"][0]["logprobs"]["content"]
    for content in (whole, [entry for part in parts for entry in part]):
        for place, entry in zip(expected.logprobs, content, strict=True):
            assert [one["token"] for one in entry["top_logprobs"]] == ["token_id:300", "token_id:5"]
            found = [one["logprob"] for one in entry["top_logprobs"]]
            assert found == pytest.approx([place[token].logprob for token in listed], abs=1e-4)


def test_an_echo_has_the_prompts_logprobs_too(http, llm):
    expected = llm.generate([PROMPT], params(temperature=0.0, max_tokens=1, prompt_logprobs=1))[0]
    ids = expected.prompt_token_ids
    for prompt in (PROMPT, ids):
        only = post(http, TEXT, prompt=prompt, max_tokens=0, echo=True, logprobs=1, temperature=0)
        choice = only["choices"][0]
        assert choice["text"] == PROMPT and "".join(choice["logprobs"]["tokens"]) == PROMPT
        told = choice["logprobs"]["token_logprobs"]
        assert told[0] is None and len(told) == len(ids)
        for token, place, logprob in zip(ids[1:], expected.prompt_logprobs[1:], told[1:], strict=True):
            assert logprob == pytest.approx(place[token].logprob, abs=1e-4)
    more = post(http, TEXT, prompt=ids, max_tokens=3, echo=True, logprobs=1, temperature=0)["choices"][0]
    assert more["text"].startswith(PROMPT) and len(more["logprobs"]["tokens"]) == len(ids) + 3
    assert "".join(more["logprobs"]["tokens"]) == more["text"]
    chunks = streamed(http, TEXT, prompt=ids, max_tokens=3, echo=True, temperature=0)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == more["text"]


def test_prompt_logprobs_and_token_ids_are_returned(http, llm):
    expected = llm.chat([QUESTION], params(temperature=0.0, prompt_logprobs=1))[0]
    asked = {"messages": QUESTION, "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    whole = post(http, CHAT, **asked, prompt_logprobs=1)
    assert whole["prompt_token_ids"] == expected.prompt_token_ids
    assert whole["choices"][0]["token_ids"] == expected.outputs[0].token_ids
    told = whole["prompt_logprobs"]
    assert told[0] is None and len(told) == len(expected.prompt_token_ids)
    token = expected.prompt_token_ids[1]
    assert told[1][str(token)]["rank"] == expected.prompt_logprobs[1][token].rank
    chunks = streamed(http, CHAT, **asked)
    assert chunks[0]["prompt_token_ids"] == expected.prompt_token_ids
    ids = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"] or ()]
    assert ids == expected.outputs[0].token_ids


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.9, "top_k": 5, "seed": 1},
        {"temperature": 0.9, "min_p": 0.2, "top_p": 0.8, "seed": 1},
        {"temperature": 0.0, "repetition_penalty": 1.5},
        {"temperature": 0.0, "presence_penalty": 1.5, "frequency_penalty": 1.0},
        {"temperature": 0.0, "logit_bias": {"300": 8.0}},
        {"temperature": 0.0, "allowed_token_ids": [300, 301, 302]},
        {"temperature": 0.0, "bad_words": [" the", " a"]},
        {"temperature": 0.0, "stop": [" a", "t"]},
        {"temperature": 0.0, "stop": " t", "include_stop_str_in_output": True},
        {"temperature": 0.0, "min_tokens": 12, "ignore_eos": True},
        {"temperature": 0.0, "truncate_prompt_tokens": 2},
    ],
    ids=lambda more: "-".join(more),
)
def test_a_parameter_means_what_it_means_to_the_engine(http, llm, more):
    engine = {**more}
    if "logit_bias" in more:
        engine["logit_bias"] = {int(token): bias for token, bias in more["logit_bias"].items()}
    expected = llm.generate([PROMPT], params(**engine))[0].outputs[0]
    choice = post(http, TEXT, prompt=PROMPT, max_tokens=12, **more)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (expected.text, expected.finish_reason)
    assert choice["stop_reason"] == expected.stop_reason


def test_a_stop_token_is_named(http, llm):
    token = llm.generate([PROMPT], params(temperature=0.0))[0].outputs[0].token_ids[4]
    choice = post(http, TEXT, prompt=PROMPT, temperature=0, max_tokens=12, stop_token_ids=[token])["choices"][
        0
    ]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", token)


def test_a_template_takes_its_options(http, llm):
    final = [*QUESTION, {"role": "assistant", "content": "It is"}]
    asked = {"messages": final, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    going_on = post(http, CHAT, **asked, add_generation_prompt=False, continue_final_message=True, echo=True)
    anew = post(http, CHAT, **asked)
    assert going_on["choices"][0]["message"]["content"].startswith("It is")
    assert len(going_on["prompt_token_ids"]) < len(anew["prompt_token_ids"])
    with_kwargs = post(http, CHAT, **asked, chat_template_kwargs={"enable_thinking": False})
    assert with_kwargs["prompt_token_ids"] == anew["prompt_token_ids"]  # this template has no such variable


def test_usage_comes_once_at_the_end_or_with_every_chunk(http):
    asked = {"messages": QUESTION, "max_tokens": 6, "temperature": 0}
    usages = [
        chunk["usage"] for chunk in streamed(http, CHAT, **asked, stream_options={"include_usage": True})
    ]
    assert usages[:-1] == [None] * (len(usages) - 1) and usages[-1]["completion_tokens"] == 6
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [c["usage"]["completion_tokens"] for c in streamed(http, CHAT, **asked, stream_options=options)]
    assert len(counts) > 1 and counts == sorted(counts) and counts[-1] == 6


@pytest.mark.parametrize(("path", "prompt"), [(CHAT, {"messages": QUESTION}), (TEXT, {"prompt": PROMPT})])
def test_usage_counts_the_tokens_that_a_client_was_given_by_then(http, path, prompt):
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"max_tokens": 6, "n": 2, "seed": 1, "return_token_ids": True, "stream_options": options}
    given = 0
    for chunk in streamed(http, path, **prompt, **asked):
        given += sum(len(choice["token_ids"] or ()) for choice in chunk["choices"])
        assert chunk["usage"]["completion_tokens"] == given
        assert chunk["usage"]["total_tokens"] == given + chunk["usage"]["prompt_tokens"]
    assert given == 12


def test_a_messages_start_counts_no_token_of_its_answer(http):
    body = {"messages": QUESTION, "max_tokens": 4, "stream": True}
    with http.stream("POST", MESSAGES, json=body) as answer:
        told = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert told[0]["message"]["usage"]["output_tokens"] == 0
    assert [event["usage"]["output_tokens"] for event in told if event["type"] == "message_delta"] == [4]


def test_a_prompt_is_cut_at_the_side_that_is_named(http, llm):
    ids = llm.generate([PROMPT], params(max_tokens=1))[0].prompt_token_ids
    for side, kept in (("left", ids[-2:]), ("right", ids[:2]), (None, ids[-2:])):
        more = {"truncate_prompt_tokens": 2, "truncation_side": side, "return_token_ids": True}
        for prompt in (PROMPT, ids):
            choice = post(http, TEXT, prompt=prompt, max_tokens=1, **more)["choices"][0]
            assert choice["prompt_token_ids"] == kept
    refused = http.post(TEXT, json={"prompt": PROMPT, "truncation_side": "middle"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "truncation_side")


def test_thoughts_are_bounded_where_the_model_marks_them(http, start):
    asked = {"prompt": "Why? <think>", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    refused = http.post(TEXT, json=asked | {"thinking_token_budget": 5})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "thinking_token_budget")
    free = post(http, TEXT, **asked, return_token_ids=True)["choices"][0]
    with httpx.Client(
        base_url=start(reasoning_parser="think").served_at().split()[-1], timeout=60
    ) as thinking:
        for budget in (0, 5, 12):
            more = {"thinking_token_budget": budget, "return_token_ids": True}
            whole = post(thinking, TEXT, **asked, **more)["choices"][0]
            assert whole["token_ids"][:budget] == free["token_ids"][:budget]
            thoughts, end, rest = whole["text"].partition("</think>")
            thought = post(http, "/detokenize", tokens=free["token_ids"][:budget])["prompt"]
            assert end and rest and thoughts == thought
            chunks = streamed(thinking, TEXT, **asked, **more)
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]
        assert post(thinking, TEXT, **asked, thinking_token_budget=-1)["choices"][0]["text"] == free["text"]
        chat = {
            "messages": [*QUESTION, {"role": "assistant", "content": "<think>"}],
            "thinking_token_budget": 4,
        }
        chat |= {"add_generation_prompt": False, "continue_final_message": True, "max_tokens": 40}
        message = post(thinking, CHAT, **chat, ignore_eos=True)["choices"][0]["message"]
        assert message["reasoning_content"] and message["content"]
        begun = {"messages": chat["messages"], "max_tokens": 40, "temperature": 0}
        thinks = begun | {"thinking": {"type": "enabled", "budget_tokens": 4}}
        blocks = [block["type"] for block in post(thinking, MESSAGES, **thinks)["content"]]
        assert blocks == ["thinking", "text"]
        named = "x-pageant-fields-without-effect"
        assert named not in thinking.post(MESSAGES, json=thinks).headers
        assert http.post(MESSAGES, json=thinks).headers[named] == "thinking.budget_tokens"
        wrong = begun | {"thinking": {"type": "enabled", "budget_tokens": -5}}
        assert thinking.post(MESSAGES, json=wrong).json()["error"]["param"] == "thinking.budget_tokens"
        body = {"input": "Hi", "thinking_token_budget": 4, "max_output_tokens": 8}
        assert post(thinking, RESPONSES, **body)["usage"]["output_tokens"] == 8


def test_tokens_are_spelt_as_the_vocabulary_has_them(http):
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    for text in ("Hello there, Köln \U0001f600", "<|im_start|>user"):
        told = post(http, "/tokenize", prompt=text, return_token_strs=True)
        assert told["token_strs"] == [tokenizer.id_to_token(token) for token in told["tokens"]]
    assert "return_token_strs" not in told and post(http, "/tokenize", prompt="a")["token_strs"] is None


def test_a_deadline_ends_a_request_with_what_it_has(http):
    choice = post(http, TEXT, prompt=PROMPT, max_tokens=900, ignore_eos=True, deadline=0.1)["choices"][0]
    assert choice["finish_reason"] == "abort"
