"""A WebSocket on `/v1/chat/completions`: each message of the client's is a chat request, whose chunks are the
server's messages, up to `[DONE]`; then the next may come. It saves a connection and its head per request.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any

from litestar import WebSocket, websocket
from litestar.exceptions import WebSocketException

from pageant.actors.http.chat_answers import begin
from pageant.actors.http.errors import Disconnected, told
from pageant.actors.http.openai.chat import ChatWriter
from pageant.actors.http.openai.chat_requests import ChatRequest
from pageant.actors.http.service import Service
from pageant.actors.http.streams import (
    ABORT,
    Teller,
    encode,
    until_gone,
)

WAITING_MAX = 16  # requests that come while another is answered

Socket = WebSocket[Any, Any, Any]


class _Inbox:
    """Requests that the client sends while an answer is on its way."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._kept: deque[Any] = deque()

    async def next(self) -> bytes | None:
        """The next request; None if there will be none."""
        message: Any = self._kept.popleft() if self._kept else await self._socket.receive()
        if message["type"] != "websocket.receive":
            return None
        text: str | None = message.get("text")
        return text.encode("utf-8", "replace") if text is not None else bytes(message.get("bytes") or b"")

    async def receive(self) -> Any:
        """Receive and keep a message, for a caller that only needs to know whether the client is still
        connected.
        """
        if len(self._kept) >= WAITING_MAX:
            return {"type": "websocket.disconnect"}
        self._kept.append(await self._socket.receive())
        return self._kept[-1]


def routes(service: Service) -> list[Any]:
    """The routes of this family."""

    @websocket("/v1/chat/completions")
    async def chat_socket(socket: Socket) -> None:
        """Answer conversations, one after the other."""
        await socket.accept()
        service.part_of(socket.headers.get("traceparent"))
        inbox = _Inbox(socket)
        with contextlib.suppress(Disconnected):
            while (body := await inbox.next()) is not None:
                await _answer(service, socket, inbox, body)
        with contextlib.suppress(OSError, RuntimeError, WebSocketException):
            await socket.close()

    return [chat_socket]


async def _answer(service: Service, socket: Socket, inbox: _Inbox, body: bytes) -> None:
    async def write(events: Sequence[bytes]) -> None:
        try:
            for event in events:
                await socket.send_text(event.decode())
        except (OSError, RuntimeError, WebSocketException):
            raise Disconnected from None

    try:
        taken = service.check(body, ChatRequest, "chatcmpl")
        taken.asked.stream = True
        answers = begin(service, [taken.asked.chat(taken.served, service.rules)], taken.served, taken.name)
    except Exception as error:
        await write([encode(told(error)), b"[DONE]"])
        return
    writer = ChatWriter(taken.asked, answers, taken.served.name, service.now(), frame=bytes)
    drop = socket.scope["state"][ABORT]
    async with until_gone(inbox.receive, answers):
        await Teller(answers, writer, write, drop, service.pacemaker).tell()
