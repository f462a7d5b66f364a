"""Images and videos of requests by their addresses: fetched from domains that the operator allows, as data: URLs.

Who can make a server fetch can make it ask what only the server reaches. So nothing is fetched unless its domain is
allowed; a name must not lead to a private address, and is looked up once, so that it cannot lead elsewhere when it is
connected to; and no redirect is followed. Only an address that is allowed as a number may be private.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pageant.models.vision.processing import BYTES_MAX
from pageant.models.vision.video import VIDEO_BYTES_MAX
from pageant.protocol.errors import BadRequest

__all__ = ["MediaFetcher", "check_domains"]

FETCH_SECONDS = 10.0
AT_A_TIME = 8
URLS_MAX = 64
_HEAD_BYTES = 1 << 15
_DOMAIN = re.compile(r"[a-z0-9.:_-]{1,253}")
_KINDS = ("image_url", "input_image", "image", "video_url", "video")
_VIDEO = "video_url"
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)

Resolve = Callable[[str, int], Awaitable[list[str]]]


class _Target(NamedTuple):
    """Destination of a fetch."""

    scheme: str
    host: str
    port: int
    path: str


def check_domains(domains: Collection[str]) -> None:
    """Refuse what is no name of a domain; raises ValueError."""
    for domain in domains:
        if not _DOMAIN.fullmatch(domain):
            raise ValueError(
                f"allowed_media_domains: found {domain!r:.100}; expected a domain in small letters"
            )


async def _resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port)
    return [str(one[4][0]) for one in found]


class MediaFetcher:
    """Fetches images and videos for requests.

    Args:
        domains: names, or addresses as numbers, from which they are fetched.
        resolve: looks a name up.
    """

    def __init__(self, domains: Collection[str], resolve: Resolve = _resolve) -> None:
        self._domains, self._resolve = frozenset(domains), resolve
        self._turns = asyncio.Semaphore(AT_A_TIME)

    async def inlined(self, body: bytes) -> bytes:
        """Return a request's body with data: URLs in place of the addresses of images and videos.

        Raises:
            BadRequest: one of them is not allowed, or cannot be fetched.
        """
        if not self._domains or b"://" not in body or not (b"image" in body or b"video" in body):
            return body
        try:
            request = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return body  # which is told where it is read
        places = list(_places(request))
        if not places:
            return body
        if len(places) > URLS_MAX:
            raise BadRequest(
                f"the request has {len(places)} addresses of images or videos; at most {URLS_MAX}", "messages"
            )
        each: dict[str, int] = {}
        for holder, key, bytes_max in places:
            each[str(holder[key])] = max(bytes_max, each.get(str(holder[key]), 0))
        found = await asyncio.gather(*(self.fetch(url, bytes_max) for url, bytes_max in each.items()))
        fetched = dict(zip(each, found, strict=True))
        for holder, key, _ in places:
            holder[key] = fetched[str(holder[key])]
        return msgspec.json.encode(request)

    async def fetch(self, url: str, bytes_max: int = BYTES_MAX) -> str:
        """Return the image or the video of an address, of at most so many bytes, as a data: URL.

        Raises:
            BadRequest: says why it was not fetched.
        """
        target = self._target(url)
        try:
            async with self._turns, asyncio.timeout(FETCH_SECONDS):
                data = await self._get(target, await self._address(target), bytes_max)
        except TimeoutError:
            raise _refused(url, f"it took more than {FETCH_SECONDS:g} s") from None
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise _refused(url, f"{error!s:.200}") from None
        encoded = base64.b64encode(data).decode()
        return f"data:application/octet-stream;base64,{encoded}"

    def _target(self, url: str) -> _Target:
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").lower().rstrip("."), parts.port
        except ValueError as error:
            raise _refused(url, str(error)) from None
        if host not in self._domains:
            raise _refused(url, "its domain is not among allowed_media_domains")
        if parts.username is not None or not url.isascii() or any(ord(one) <= 32 for one in url):
            raise _refused(url, "expected a plain address, without a user or blanks")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return _Target(
            parts.scheme.lower(), host, port or (443 if parts.scheme.lower() == "https" else 80), path
        )

    async def _address(self, target: _Target) -> str:
        """Return the address to connect to; raises ValueError where it is private."""
        try:
            return str(ipaddress.ip_address(target.host))  # the operator has allowed this very one
        except ValueError:
            found = await self._resolve(target.host, target.port)
        private = [one for one in found if not _is_public(one)]
        if private or not found:
            raise ValueError("its name leads to a private address" if private else "its name leads nowhere")
        return found[0]

    async def _get(self, target: _Target, address: str, bytes_max: int) -> bytes:
        context = ssl.create_default_context() if target.scheme == "https" else None
        reader, writer = await asyncio.open_connection(
            address,
            target.port,
            ssl=context,
            server_hostname=target.host if context is not None else None,
            limit=_HEAD_BYTES,
        )
        try:
            default = 443 if target.scheme == "https" else 80
            host = f"[{target.host}]" if ":" in target.host else target.host
            host += "" if target.port == default else f":{target.port}"
            writer.write(
                f"GET {target.path} HTTP/1.1\r\nHost: {host}\r\nAccept: image/*, video/*\r\n"
                "Accept-Encoding: identity\r\nUser-Agent: pageant\r\nConnection: close\r\n\r\n".encode()
            )
            await writer.drain()
            return await _body(reader, bytes_max)
        finally:
            writer.transport.abort()


async def _body(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    """Return the body of an answer; raises ValueError for one that cannot be read, or is too large."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = head[0].split(" ")[1:2]
    if status != ["200"]:
        moved = status and status[0].startswith("3")
        raise ValueError(
            "it is moved, and redirects are not followed" if moved else f"the answer is {head[0]!r:.80}"
        )
    fields = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
    }
    if fields.get("content-encoding", "identity").lower() != "identity":
        raise ValueError(f"it comes as {fields['content-encoding']!r:.40}")
    if "chunked" in fields.get("transfer-encoding", "").lower():
        return await _chunks(reader, bytes_max)
    length = fields.get("content-length")
    if length is not None:
        if not length.isdecimal() or int(length) > bytes_max:
            raise ValueError(f"it has {length:.20} bytes; at most {bytes_max} are taken")
        return await reader.readexactly(int(length))
    data = bytearray()
    while piece := await reader.read(1 << 16):
        _add(data, piece, bytes_max)
    return bytes(data)


async def _chunks(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    data = bytearray()
    while True:
        size = int((await reader.readline()).split(b";")[0].strip() or b"x", 16)
        if size > bytes_max:
            raise ValueError(f"it has more than {bytes_max} bytes")
        if not size:
            return bytes(data)
        _add(data, await reader.readexactly(size), bytes_max)
        await reader.readexactly(2)


def _add(data: bytearray, piece: bytes, bytes_max: int) -> None:
    data += piece
    if len(data) > bytes_max:
        raise ValueError(f"it has more than {bytes_max} bytes")


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_global and not found.is_multicast


def _refused(url: str, why: str) -> BadRequest:
    return BadRequest(f"the address {url!r:.200} was not fetched: {why}", "messages")


def _places(value: Any) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Yield mappings in a request that hold the address of an image or a video, with its key and its most bytes."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            if one.get("type") in _KINDS:
                for holder, key in (
                    (one, "image_url"),
                    (one.get("image_url"), "url"),
                    (one.get("source"), "url"),
                    (one, _VIDEO),
                    (one.get(_VIDEO), "url"),
                ):
                    if (
                        isinstance(holder, dict)
                        and isinstance(url := holder.get(key), str)
                        and _ADDRESS.match(url)
                    ):
                        is_video = key == _VIDEO or holder is one.get(_VIDEO)
                        yield holder, key, VIDEO_BYTES_MAX if is_video else BYTES_MAX
            waiting += one.values()
