"""Sources of answers for `pageant chat`: an engine of its own, or a server that runs already."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from pageant.actors.client.engine import Engine
from pageant.protocol.errors import BadRequest, PageantError, PeerGone
from pageant.protocol.sampling import SamplingParams

Messages = list[dict[str, str]]
ANSWER_SECONDS = 600.0
CONTEXT_FULL = ("max_model_len", "maximum context length", "context_length_exceeded", "exceeds the context")


class ContextFull(PageantError):
    """The conversation has more tokens than the model's context."""


class Backend(Protocol):
    """Answers conversations."""

    name: str
    """Name of the model, as shown to the user."""

    def answer(self, messages: Messages, params: SamplingParams) -> AsyncIterator[tuple[str, int]]:
        """Yield each new text of the answer with the number of its tokens so far.

        Raises:
            ContextFull: the conversation is too long.
        """
        ...

    async def close(self) -> None:
        """Free what the backend holds."""
        ...


class EngineBackend:
    """Answers from an engine in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.name = engine, Path(engine.model_name).name or engine.model_name

    async def answer(self, messages: Messages, params: SamplingParams) -> AsyncIterator[tuple[str, int]]:
        """See `Backend`."""
        try:
            async for output in self._engine.chat(messages, params):
                yield output.outputs[0].new_text, len(output.outputs[0].token_ids)
        except BadRequest as error:
            raise _classified(error) from None

    async def close(self) -> None:
        """See `Backend`."""
        await self._engine.close()


class ServerBackend:
    """Answers from a server with OpenAI's API.

    Raises:
        BadRequest: the URL is none.
    """

    def __init__(self, url: str, api_key: str | None, model: str | None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest(f"found {url!r}; expected such as http://127.0.0.1:8000", "--url")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._open: Callable[[], http.client.HTTPConnection] = partial(
            kind, parts.hostname, parts.port, timeout=ANSWER_SECONDS
        )
        self._base = f"{parts.path.rstrip('/').removesuffix('/v1')}/v1"
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._url = url
        self.name = model or self._first_model()

    def _first_model(self) -> str:
        with contextlib.closing(self._open()) as connection:
            found = json.loads(self._request(connection, "GET", "/models", None).read())
        try:
            return str(found["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise PeerGone(f"{self._url} lists no model at /v1/models") from None

    async def answer(self, messages: Messages, params: SamplingParams) -> AsyncIterator[tuple[str, int]]:
        """See `Backend`."""
        body = {"model": self.name, "messages": messages, "stream": True, **given_fields(params)}
        connection = self._open()
        tokens = 0
        try:
            response = await asyncio.to_thread(self._request, connection, "POST", "/chat/completions", body)
            while line := await asyncio.to_thread(response.readline):
                if (event := _event(line)) is None:
                    continue
                for choice in event.get("choices") or ():
                    delta = choice.get("delta") or {}
                    if text := delta.get("content"):
                        tokens += 1  # servers send an event for each token
                        yield text, tokens
        except (OSError, http.client.HTTPException) as error:
            raise PeerGone(f"{self._url} ended the answer: {error}") from None
        finally:
            # An interrupted answer leaves a thread that reads: it ends with the connection.
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    async def close(self) -> None:
        """See `Backend`."""

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, self._base + path, json.dumps(body) if body else None, self._headers)
            response = connection.getresponse()
        except OSError as error:
            raise PeerGone(f"{self._url} cannot be reached: {error}") from None
        if response.status == 200:
            return response
        text = _error_text(response.read())
        if response.status in (401, 403):
            text += "; give the server's key with --api-key"
        raise _classified(BadRequest(f"{self._url} answered {response.status}: {text}"))


def given_fields(params: SamplingParams) -> dict[str, Any]:
    """Return the fields of a request's body that differ from their defaults, and the temperature."""
    given = {
        field.name: getattr(params, field.name)
        for field in msgspec.structs.fields(params)
        if field.name in ("max_tokens", "top_p", "top_k", "min_p", "stop", "seed")
        and getattr(params, field.name) != field.default
    }
    given = {name: value for name, value in given.items() if value is not None and value != ()}
    fields: dict[str, Any] = msgspec.to_builtins({"temperature": params.temperature, **given})
    return fields


def _event(line: bytes) -> dict[str, Any] | None:
    """One server-sent event's object; None for other lines and the end mark."""
    if not line.startswith(b"data:") or (data := line[5:].strip()) == b"[DONE]":
        return None
    event: dict[str, Any] = json.loads(data)
    if error := event.get("error"):
        raise PeerGone(
            f"the server says: {error.get('message', error) if isinstance(error, dict) else error}"
        )
    return event


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:300]


def _classified(error: BadRequest) -> PageantError:
    return ContextFull(str(error)) if any(mark in str(error) for mark in CONTEXT_FULL) else error
