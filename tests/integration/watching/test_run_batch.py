"""Batch files as OpenAI documents them: in, and out."""

from __future__ import annotations

import json
import subprocess
import sys

import openai
import pytest

from pageant.protocol.errors import BadRequest
from pageant.scripts.commands.run_batch import run_batch


def asked(custom_id, body, url="/v1/completions", **more):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body} | more)


def body(prompt, **more):
    return {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True} | more


CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0, "seed": 1}


def run(server, source, target, **more):
    given = {"errors": None, "url": server, "api_key": "secret", "concurrency": 4, "resume": False} | more
    return run_batch({}, str(source), str(target), **given)


def answers(path):
    return {one["custom_id"]: one for one in map(json.loads, path.read_text().splitlines())}


def test_every_request_is_answered_as_the_server_answers_it(server, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [asked(f"r-{index}", body(f"prompt {index}")) for index in range(10)]
    source.write_text("\n".join([*lines, "", asked("chat", CHAT, "/v1/chat/completions")]) + "\n")
    assert run(server, source, target) == 0
    found = answers(target)
    assert set(found) == {*(f"r-{index}" for index in range(10)), "chat"}
    assert len({one["id"] for one in found.values()}) == 11
    for one in found.values():
        assert set(one) == {"id", "custom_id", "response", "error"} and one["error"] is None
        assert set(one["response"]) == {"status_code", "request_id", "body"}
        assert one["response"]["status_code"] == 200 and one["response"]["request_id"]
    with openai.OpenAI(base_url=f"{server}/v1", api_key="secret", max_retries=0) as client:
        chat = client.chat.completions.create(model=client.models.list().data[0].id, **CHAT)
        answer = openai.types.chat.ChatCompletion.model_validate(found["chat"]["response"]["body"])
        assert answer.choices[0].message == chat.choices[0].message
        assert answer.usage.total_tokens == chat.usage.total_tokens


def test_what_the_server_refuses_is_an_answer_too_and_can_go_to_a_file_of_its_own(server, tmp_path):
    source, target, errors = (tmp_path / name for name in ("in", "out", "errors"))
    bad = [
        *(asked("bad", body("x", temperature=-1)), asked("nowhere", {}, "/v1/nothing")),
        asked("other", body("x", model="other")),
    ]
    source.write_text("\n".join([*bad, asked("good", body("x"))]))
    assert run(server, source, target, errors=errors) == 3
    assert set(answers(target)) == {"good"}
    found = {name: one["response"] for name, one in answers(errors).items()}
    assert {name: one["status_code"] for name, one in found.items()} == {
        "bad": 400,
        "nowhere": 404,
        "other": 404,
    }
    assert found["bad"]["body"]["error"]["param"] == "temperature"


def test_a_batch_that_was_cut_off_goes_on_where_it_was(server, tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("\n".join(asked(f"r-{index}", body("x")) for index in range(4)))
    assert run(server, source, target) == 0
    first, second, third, _ = target.read_text().splitlines(keepends=True)
    target.write_text(first + second + third[:20])
    assert run(server, source, target, resume=True) == 0
    lines = target.read_text().splitlines(keepends=True)
    assert lines[:2] == [first, second] and len(lines) == 4
    assert set(answers(target)) == {f"r-{index}" for index in range(4)}


def test_what_failed_in_passing_is_asked_again(server, tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("\n".join(asked(f"r-{index}", body(f"{index}")) for index in range(3)) + "\n")
    assert run(server, source, target) == 0
    first, second, third = target.read_text().splitlines(keepends=True)
    gone = json.loads(second) | {"response": None, "error": {"code": "connection_error", "message": "gone"}}
    busy = json.loads(third)
    busy["response"] |= {"status_code": 503}
    target.write_text("".join([first, json.dumps(gone) + "\n", json.dumps(busy) + "\n"]))
    assert run(server, source, target, resume=True) == 0
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(found) == 3 and json.loads(first) in found
    assert all(one["response"]["status_code"] == 200 for one in found)


def test_nothing_runs_of_a_file_that_is_wrong(tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text(
        "\n".join(
            [
                *(asked("a", {}), "{", asked("a", {}), asked("b", {}, "x"), asked("c", {}, method="GET")),
                *(asked("", {}), asked("d", body("x", stream=True)), asked("e", [1]), "[" * 10_000),
                *(["{}"] * 5),
            ]
        )
    )
    with pytest.raises(BadRequest) as error:
        run("http://127.0.0.1:9", source, target)
    said = str(error.value)
    for part in (
        *("line 2: Input data was truncated", "line 3: custom_id 'a' is that of line 1 too"),
        *("line 4: url is 'x'", "line 5: Invalid enum value 'GET'", "line 6: custom_id has 0 characters"),
        *("line 7: body.stream is set", "line 8: Expected `object`", "line 9:", "and 3 more"),
    ):
        assert part in said
    assert not target.exists()


def test_the_command_serves_a_model_for_as_long_as_it_takes(checkpoint):
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pageant", "run-batch", "-i", "-", "-o", "-", "--model", checkpoint.path),
            *("--placement", "one", "--set", "threads=1", "--set", "num_blocks=64"),
        ],
        input="\n".join([asked("a", body("x")), asked("b", body("x", n=-1))]).encode(),
        capture_output=True,
        timeout=120,
    )
    assert result.returncode == 1, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert {one["custom_id"]: one["response"]["status_code"] for one in found} == {"a": 200, "b": 400}
    assert b"1 answered, 1 failed" in result.stderr
