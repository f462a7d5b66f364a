"""A server that says what a test tells it to, piece by piece."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(data) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))


def spoken(*texts: str, usage=None) -> list[bytes]:
    """The events of a completion."""
    events = [event({"choices": [{"index": 0, "text": text, "finish_reason": None}]}) for text in texts]
    if usage is not None:
        events.append(
            event({"choices": [], "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}})
        )
    return [*events, event("[DONE]")]


class Server:
    """Answers each request with the bytes that `answer` gives for its path and body, one write for each item.
    A None among them closes the connection."""

    def __init__(self, answer) -> None:
        self.answer, self.bodies, self.connections = answer, [], 0
        self.tasks = set()

    async def serve(self, reader, writer) -> None:
        self.connections += 1
        self.tasks.add(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                self.bodies.append(json.loads(body or b"null"))
                path = head.split(b" ")[1].decode()
                if path == "/v1/models":
                    page = b'{"data": [{"id": "it"}]}'
                    pieces = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page) + page]
                else:
                    pieces = self.answer(path, self.bodies[-1])
                for piece in pieces:
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)  # so that it may be read by itself
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest.fixture
def wire():
    """Wire of a server: `async with wire.serving(answer) as (server, url)`, and the bytes to answer with."""

    @asynccontextmanager
    async def serving(answer):
        server = Server(answer)
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        try:
            yield server, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        finally:
            listener.close()
            await asyncio.gather(*server.tasks)

    return SimpleNamespace(serving=serving, event=event, chunked=chunked, spoken=spoken, HEAD=HEAD)
