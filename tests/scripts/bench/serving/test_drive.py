import math

import pytest

from pageant.scripts.bench.serving.drive import Driver, Run, first_model
from pageant.scripts.bench.serving.figures import parse_limits, table
from pageant.scripts.bench.serving.load import Load
from pageant.scripts.http_client import Client, Failed
from pageant.scripts.loads import Arrivals, Lengths


async def drive(wire, answer, load, run, warmup=0):
    async with wire.serving(answer) as (server, url):
        client = Client(url)
        driver = Driver(client, load, Arrivals(), run)
        try:
            await driver.prepare(warmup)
            return await driver.drive(), server
        finally:
            client.close()


def echo(wire):
    """Answers with as many tokens as are asked for, which say what the prompt was."""

    def answer(path, body):
        texts = [f"{len(str(body.get('prompt', body.get('messages'))))}."] * body["max_tokens"]
        return [wire.HEAD, wire.chunked(*wire.spoken(*texts, usage=(7, len(texts))))]

    return answer


async def test_every_request_of_a_load_is_sent_and_counted(wire):
    load = Load(Lengths(2, 9), Lengths(3, 6))
    run = Run(model="it", conversations=20, concurrency=4, extra={"ignore_eos": True})
    results, server = await drive(wire, echo(wire), load, run, warmup=2)
    expected = [load.conversation(number)[0].output_tokens for number in range(20)]
    assert sorted(results.output_tokens) == sorted(expected)
    assert len(results.itl) == sum(expected) - 20 and not results.failures
    assert len(server.bodies) == 22 and server.connections <= 4
    assert all(body["model"] == "it" and body["stream_options"]["include_usage"] for body in server.bodies)
    report = results.report({})
    assert report["completed"] == 20 and report["output_tokens"] == sum(expected)
    assert report["prompt_tokens"] == 140 and report["ttft"]["p99"] >= report["ttft"]["median"] > 0
    assert "20 answers" in table(report) and "goodput" not in str(report)


async def test_a_conversation_brings_everything_before_along(wire):
    load = Load(Lengths(3, 3), Lengths(2, 2), turns=Lengths(3, 3))
    _, server = await drive(wire, echo(wire), load, Run(conversations=1, chat=True))
    roles = [[message["role"] for message in body["messages"]] for body in server.bodies]
    assert roles == [["user"], ["user", "assistant", "user"], ["user", "assistant"] * 2 + ["user"]]
    _, server = await drive(wire, echo(wire), load, Run(conversations=1))
    first, second, third = (body["prompt"] for body in server.bodies)
    assert second.startswith(first) and third.startswith(second) and len(second) > len(first) + 3


async def test_a_lost_a_repeated_and_another_token_are_told(wire):
    """The third, fourth and fifth answers are wrong, each in its way."""
    texts = [["a", "b"], ["a", "b"], ["a"], ["a", "b", "b"], ["b", "a"], ["a", "b"]]

    def answer(path, body):
        spoken = texts.pop(0)
        return [wire.HEAD + wire.chunked(*wire.spoken(*spoken, usage=(1, len(spoken))))]

    load = Load(Lengths(3, 3), Lengths(2, 2), distinct=1)
    run = Run(conversations=5, concurrency=1, verify=True, extra={"ignore_eos": True})
    results, _ = await drive(wire, answer, load, run)
    assert len(results.e2e) == 2
    assert results.failures == {
        "2 tokens were asked for, 1 came": 1,
        "2 tokens were asked for, 3 came": 1,
        "the text is not what the same prompt got when it was alone": 1,
    }


async def test_good_answers_are_those_within_every_limit(wire):
    load, run = Load(), {"conversations": 4, "concurrency": 1}
    for text, good in (("ttft:60000,tpot:60000", 4), ("e2e:0", 0), ("tpot:60000,ttft:0", 0)):
        limits = parse_limits(text)
        results, _ = await drive(wire, echo(wire), load, Run(**run, limits=limits))
        assert results.good == good and "goodput_requests_per_second" in results.report(limits)


async def test_no_conversation_begins_after_the_time(wire):
    results, server = await drive(wire, echo(wire), Load(), Run(seconds=0.0, concurrency=3))
    assert not server.bodies and not results.e2e
    assert results.report({})["ttft"] is None


async def test_the_first_model_is_found_and_a_server_that_refuses_is_told_before_the_load(wire):
    async with wire.serving(lambda path, body: [b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"]) as (_, url):
        client = Client(url)
        assert await first_model(client) == "it"
        with pytest.raises(Failed, match="500"):
            await Driver(client, Load(), Arrivals(), Run(conversations=math.inf)).prepare(1)
        client.close()
