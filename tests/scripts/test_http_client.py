import pytest

from pageant.protocol.errors import BadRequest
from pageant.scripts.http_client import Answer, Client, Failed, _Reading

BODY = {"prompt": "x", "stream": True}


async def ask(wire, *pieces):
    async with wire.serving(lambda path, body: pieces) as (_, url):
        client = Client(url)
        try:
            return await client.stream("/v1/completions", BODY)
        finally:
            client.close()


async def test_a_stream_is_read_whole(wire):
    answer = await ask(wire, wire.HEAD + wire.chunked(*wire.spoken("a", "b", "", "c", usage=(5, 6))))
    assert (answer.text, answer.prompt_tokens, answer.output_tokens) == ("abc", 5, 6)
    assert len(answer.gaps) == 3 and answer.sent <= answer.first <= answer.last


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 8, 11, 64, 10_000])
def test_events_are_counted_however_the_bytes_are_cut(wire, size):
    """The content quotes what marks an event and what ends a body, as JSON writes them."""
    said = ["data:", "\ndata: x\n\n", "\r\n0\r\n\r\n", "ok"]
    stream = wire.HEAD + wire.chunked(*wire.spoken(*said, usage=(1, 4)))
    reading, answer = _Reading(), Answer(sent=0.0)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    ended = [reading.take(piece) for piece in pieces]
    assert ended == [False] * (len(pieces) - 1) + [True]
    reading.fill(answer)  # raises if counted and read events differ
    assert answer.text == "".join(said) and len(answer.gaps) == 3


async def test_a_chunk_may_cut_an_event_and_a_stream_may_end_with_its_connection(wire):
    stream = b"".join(wire.spoken("one", "two"))
    assert (
        await ask(wire, wire.HEAD + wire.chunked(stream[:30], stream[30:70], stream[70:]))
    ).text == "onetwo"
    plain = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    answer = await ask(wire, plain, stream[:10], stream[10:], None)
    assert (answer.text, answer.output_tokens) == ("onetwo", 2)


async def test_the_opening_of_a_message_is_not_its_first_token(wire):
    def delta(**fields):
        return wire.event({"choices": [{"index": 0, "delta": fields}]})

    events = [delta(role="assistant", content=""), delta(reasoning_content="hm "), delta(content="yes")]
    answer = await ask(wire, wire.HEAD + wire.chunked(*events, wire.event("[DONE]")))
    assert answer.text == "hm yes" and len(answer.gaps) == 1 and answer.output_tokens == 2


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([b"HTTP/1.1 429 Busy\r\nContent-Length: 4\r\n\r\nwait"], "429: wait"),
        ([b"SSH-2.0\r\n\r\n"], "no HTTP response"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda", None], "ended early"),
        (["HEAD", "not json"], "cannot be read"),
        (["HEAD", {"error": {"message": "died"}}], "died"),
        (["HEAD", {"choices": []}, "[DONE]"], "no output"),
        (["HEAD", {"choices": [{"text": "a"}]}], "without"),
        ([None], "ended early"),
    ],
)
async def test_what_is_no_answer_is_told(wire, pieces, said):
    if pieces[0] == "HEAD":
        pieces = [wire.HEAD + wire.chunked(*map(wire.event, pieces[1:]))]
    with pytest.raises(Failed, match=said):
        await ask(wire, *pieces)


async def test_connections_are_kept_and_one_that_was_closed_meanwhile_is_replaced(wire):
    whole = wire.HEAD + wire.chunked(*wire.spoken("a"))
    answers = [[whole], [whole, None], [whole]]
    async with wire.serving(lambda path, body: answers.pop(0)) as (server, url):
        client = Client(url + "/v1/")
        for _ in range(3):
            assert (await client.stream("/v1/completions", BODY)).text == "a"
        client.close()
    assert server.connections == 2


async def test_a_server_that_is_not_there_is_named():
    with pytest.raises(Failed, match=r"cannot connect to 127\.0\.0\.1:9"):
        await Client("127.0.0.1:9").get("/v1/models")
    with pytest.raises(BadRequest, match="the URL is 'ftp://x'"):
        Client("ftp://x")
