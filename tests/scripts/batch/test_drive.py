import json

import pytest

from pageant.scripts.batch.drive import ATTEMPTS, drive
from pageant.scripts.batch.lines import Asked, read
from pageant.scripts.http_client import Failed

FINE = (200, {"x-request-id": "mine"}, b'{"usage": {"completion_tokens": 7}}')


class Server:
    """Answers with what it is given, in turn, then fine; counts how many are open at a time."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked, self.pauses = [], []

    async def post(self, path, body):
        self.asked.append((path, json.loads(body)))
        answer = self.answers.pop(0) if self.answers else FINE
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def pause(self, seconds):
        self.pauses.append(seconds)


def requests(count) -> list[Asked]:
    lines = [{"custom_id": f"r{i}", "method": "POST", "url": "/v1/x", "body": {"i": i}} for i in range(count)]
    return read(json.dumps(one).encode() for one in lines)


async def run(server, count, concurrency=1):
    written = []
    tally = await drive(server, requests(count), concurrency, written.append, pause=server.pause)
    return tally, written


async def test_answers_are_written_and_counted():
    server = Server()
    tally, written = await run(server, 5, concurrency=3)
    assert [body["i"] for _, body in server.asked] == [0, 1, 2, 3, 4]
    assert (tally.succeeded, tally.failed, tally.output_tokens) == (5, 0, 35)
    assert [one.custom_id for one in written] == [f"r{i}" for i in range(5)]
    assert written[0].response.request_id == "mine" and len({one.id for one in written}) == 5


async def test_what_passes_is_tried_again_a_while_later():
    server = Server((429, {}, b"{}"), Failed("gone"), (503, {}, b"{}"))
    tally, (answered,) = await run(server, 1)
    assert answered.succeeded and tally.succeeded == 1
    assert server.pauses == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    "answer,status,error",
    [((429, {}, b"{}"), 429, None), (Failed("gone"), None, "connection_error")],
)
async def test_what_does_not_pass_fails_at_last(answer, status, error):
    server = Server(*[answer] * ATTEMPTS)
    tally, (answered,) = await run(server, 1)
    assert tally.failed == 1 and len(server.asked) == ATTEMPTS
    assert (answered.response and answered.response.status_code) == status
    assert (answered.error and answered.error.code) == error


async def test_an_error_of_the_requests_own_is_told_at_once_whatever_its_form():
    server = Server((502, {}, b"<html>Bad \xff gateway"))
    tally, (answered,) = await run(server, 1)
    assert tally.failed == 1 and not server.pauses
    assert "gateway" in json.loads(bytes(answered.response.body))
