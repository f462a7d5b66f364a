"""Images are fetched from allowed domains alone, within bounds, and never from private addresses by a name."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pageant.actors.http.fetching import MediaFetcher, check_domains
from pageant.models.vision.processing import BYTES_MAX
from pageant.protocol.errors import BadRequest

IMAGE = b"\x89PNG and more"
ANSWERS = {
    "/plain": b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n" + IMAGE,
    "/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n\x89PNG \r\n8\r\nand more\r\n0\r\n\r\n",
    "/open": b"HTTP/1.0 200 OK\r\n\r\n" + IMAGE,
    "/moved": b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n",
    "/gone": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "/large": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (BYTES_MAX + 1),
    "/lying": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + IMAGE,
    "/packed": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nx",
    "/nonsense": b"\x00" * 40_000,
}


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, list[str]]]:
    """Serve the answers. Yields the address, and the paths that were asked for."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.split(" ")[1])
        writer.write(ANSWERS[asked[-1]])
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def public(_: str, __: int) -> list[str]:
    return ["8.8.8.8"]


async def test_an_image_is_fetched_whole_whatever_way_it_comes() -> None:
    async with serving() as (address, asked):
        fetcher = MediaFetcher(["127.0.0.1"])
        for path in ("/plain", "/chunked", "/open"):
            found = await fetcher.fetch(f"http://{address}{path}")
            assert base64.b64decode(found.partition(",")[2]) == IMAGE
        assert asked == ["/plain", "/chunked", "/open"]


async def test_addresses_in_requests_of_each_api_become_data_urls() -> None:
    async with serving() as (address, asked):
        url = f"http://{address}/plain"
        parts = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "image_url", "image_url": url},
            {"type": "input_image", "image_url": url},
            {"type": "image", "source": {"type": "url", "url": url}},
            {"type": "text", "text": url},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        ]
        body = json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()
        fetcher = MediaFetcher(["127.0.0.1"])
        found = json.loads(await fetcher.inlined(body))["messages"][0]["content"]
        inlined = (await fetcher.fetch(url)).encode().decode()
        assert found[0]["image_url"]["url"] == found[1]["image_url"] == found[2]["image_url"] == inlined
        assert found[3]["source"]["url"] == inlined and found[4:] == parts[4:]
        assert len(asked) == 2, "one address is asked once for a request"
        assert await MediaFetcher([]).inlined(body) == body
        assert await fetcher.inlined(b"{ image ://") == b"{ image ://"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/moved", "redirects are not followed"),
        ("/gone", "404 Not Found"),
        ("/large", f"at most {BYTES_MAX}"),
        ("/lying", "bytes read"),
        ("/packed", "it comes as 'gzip'"),
        ("/nonsense", "limit"),
    ],
)
async def test_what_is_no_whole_image_is_refused(path: str, why: str) -> None:
    async with serving() as (address, _):
        with pytest.raises(BadRequest, match=why):
            await MediaFetcher(["127.0.0.1"]).fetch(f"http://{address}{path}")


@pytest.mark.parametrize(
    "url",
    [
        "http://other.example/a.png",
        "http://allowed.example.other.example/a.png",
        "http://allowed.example@other.example/a.png",
        "http://169.254.169.254/latest",
        "http://[::1]/a.png",
        "http://[::1/a.png",
    ],
)
async def test_other_domains_are_not_asked(url: str) -> None:
    with pytest.raises(BadRequest, match="was not fetched"):
        await MediaFetcher(["allowed.example"], public).fetch(url)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.8", "169.254.169.254", "::1", "::ffff:10.0.0.8", "fe80::1%eth0", "224.0.0.1"],
)
async def test_a_name_that_leads_to_a_private_address_is_refused(address: str) -> None:
    async def resolve(_: str, __: int) -> list[str]:
        return ["8.8.8.8", address]

    with pytest.raises(BadRequest, match="its name leads to a private address"):
        await MediaFetcher(["allowed.example"], resolve).fetch("https://allowed.example/a.png")


async def test_a_server_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pageant.actors.http.fetching.FETCH_SECONDS", 0.05)

    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # to the end: the other side has left
        writer.close()
        left.set()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BadRequest, match="it took more than"):
            await MediaFetcher(["127.0.0.1"]).fetch(f"http://127.0.0.1:{port}/a.png")
        await left.wait()


def test_what_is_no_domain_is_refused() -> None:
    check_domains(["example.org", "127.0.0.1"])
    with pytest.raises(ValueError, match="expected a domain"):
        check_domains(["https://example.org/"])
