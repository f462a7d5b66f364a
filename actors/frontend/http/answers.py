"""Requests on their way: what comes of them, piece by piece, whole or as a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pageant.actors.frontend.http import responses
from pageant.actors.frontend.http.errors import failure, status_and_body
from pageant.actors.frontend.http.responses import Usage, event
from pageant.actors.frontend.outputs import Arrived
from pageant.protocol.errors import PageantError
from pageant.protocol.serving import Finished


class Piece(NamedTuple):
    """The next of an answer."""

    text: str
    token_ids: list[int]
    finished: Finished | None


class Answer:
    """One sequence: a sink that a reader waits at. What comes faster than it is read is merged."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.prompt_token_ids: list[int] = []
        self.num_tokens = 0
        self.finished: Finished | None = None
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._error: Exception | None = None
        self._news = asyncio.Event()

    # The sink, called by the frontend on this loop.

    @property
    def hub(self) -> Answer:
        """Its reader is on the same loop, so outputs leave at once."""
        return self

    def flush(self) -> None:
        """Wakes the reader."""
        self._news.set()

    def accepted(self, prompt: str | None, prompt_token_ids: list[int]) -> None:
        """The request is on its way."""
        self.prompt_token_ids = prompt_token_ids

    def output(self, arrived: Arrived) -> None:
        """The next piece."""
        self._texts.append(arrived.text)
        self._token_ids += arrived.token_ids
        self.finished = arrived.finished

    def failed(self, error: PageantError) -> None:
        """There will be no more."""
        self._error = error

    # The reader.

    async def begin(self) -> None:
        """Waits for something, and leaves it for `next`. Raises what `next` would."""
        await self._news.wait()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error
        if self.finished is not None and self.finished.reason == "error":
            raise failure(self.finished)

    async def next(self) -> Piece:
        """What has come since the last call; waits for something.

        Raises:
            Exception: what ended the request, instead of an answer.
        """
        await self._news.wait()
        self._raise_failure()
        self._news.clear()
        piece = Piece("".join(self._texts), self._token_ids, self.finished)
        self.num_tokens += len(self._token_ids)
        self._texts, self._token_ids = [], []
        return piece

    async def whole(self) -> Piece:
        """Everything, when it has ended."""
        pieces = [await self.next()]
        while pieces[-1].finished is None:
            pieces.append(await self.next())
        tokens = [token for piece in pieces for token in piece.token_ids]
        return Piece("".join(piece.text for piece in pieces), tokens, pieces[-1].finished)


@dataclass
class Answers:
    """All sequences of one HTTP request, and the names that they have at the frontend."""

    answers: list[Answer]
    names: list[str]
    abort: Callable[[list[str]], None]

    async def begin(self) -> None:
        """Waits until there is something of one of them.

        Raises:
            Exception: it failed before that.
        """
        waiting = [asyncio.ensure_future(answer.begin()) for answer in self.answers]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in waiting:
                task.cancel()

    async def whole(self) -> list[Piece]:
        """All of them, when they have ended. If one fails, or the caller leaves, the others are aborted."""
        try:
            return await asyncio.gather(*(answer.whole() for answer in self.answers))
        finally:
            self.close()

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Pieces with the index of their sequence, as they come."""
        waiting = {asyncio.ensure_future(answer.next()): answer for answer in self.answers}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answer = waiting.pop(task)
                    piece = task.result()
                    yield answer.index, piece
                    if piece.finished is None:
                        waiting[asyncio.ensure_future(answer.next())] = answer
        finally:
            for task in waiting:
                task.cancel()
            self.close()

    def close(self) -> None:
        """Aborts what has not ended."""
        left = [name for name, one in zip(self.names, self.answers, strict=True) if one.finished is None]
        if left:
            self.abort(left)

    def usage(self) -> Usage:
        """Tokens in and out, so far; a prompt counts once for each of its sequences."""
        ended = [answer.finished for answer in self.answers if answer.finished is not None]
        return Usage.of(
            sum(len(answer.prompt_token_ids) for answer in self.answers),
            sum(answer.num_tokens for answer in self.answers),
            sum(finished.num_cached_tokens for finished in ended),
        )


Chunk = Callable[[int, Piece, bool], Any]


async def events(
    answers: Answers, first: Sequence[Any], chunk: Chunk, usage: Callable[[Usage], Any] | None
) -> AsyncIterator[bytes]:
    """The events of a streamed answer. An error after the first piece is an event too, and the last.

    Args:
        first: what is known without a token.
        chunk: makes a body of an index, a piece, and whether it is the first of its sequence.
        usage: makes the body of the last chunk, if it was asked for.
    """
    begun: set[int] = set()
    for body in first:
        yield event(body)
    try:
        async for index, piece in answers.pieces():
            if piece.text or piece.token_ids or piece.finished is not None:
                yield event(chunk(index, piece, index not in begun))
                begun.add(index)
        if usage is not None:
            yield event(usage(answers.usage()))
    except PageantError as error:
        yield event({"error": status_and_body(error)[1]})
    yield responses.LAST_EVENT
