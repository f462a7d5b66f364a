"""Sends a load to a server, conversation by conversation, and keeps what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

from pageant.scripts.bench.serving.figures import Results
from pageant.scripts.bench.serving.load import Load, Turn
from pageant.scripts.http_client import Answer, Client, Failed
from pageant.scripts.loads import Arrivals


@dataclass(frozen=True)
class Run:
    """Way in which a load is sent.

    Attributes:
        conversations: that are begun at most; seconds: in which any are.
        concurrency: conversations at a time; infinite is as many as arrive.
        chat: ask `/v1/chat/completions`; otherwise `/v1/completions`.
        think_seconds: between an answer and the next turn.
        extra: fields of every request.
        verify: an answer must be what the same conversation got first, before the load, all by itself.
    """

    model: str | None = None
    conversations: float = math.inf
    seconds: float = math.inf
    concurrency: float = math.inf
    chat: bool = False
    think_seconds: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)
    verify: bool = False
    limits: dict[str, float] = field(default_factory=dict)


class Driver:
    """One load on one server."""

    def __init__(self, client: Client, load: Load, arrivals: Arrivals, run: Run) -> None:
        self._client, self._load, self._arrivals, self._run = client, load, arrivals, run
        self._right: dict[tuple[str, int], str] = {}
        self.results = Results()

    async def prepare(self, warmup: int) -> None:
        """Asks what does not count: `warmup` conversations, and with `verify` each of the distinct ones.

        Raises:
            Failed: the server does not answer as it should.
        """
        for number in range(warmup):
            await self._converse(number, None)
        if self._run.verify:
            for number in range(self._load.distinct):
                await self._converse(number, self._learn)

    async def drive(self) -> Results:
        """Sends everything, and returns when the last answer has come."""
        run, open_ = self._run, set[asyncio.Task[None]]()
        free = asyncio.Semaphore(int(run.concurrency)) if run.concurrency < math.inf else None
        times = self._arrivals.times(random.Random(f"{self._load.seed}/arrivals"))
        self._began = began = time.perf_counter()
        number = 0
        while number < run.conversations:
            await asyncio.sleep(max(0.0, next(times) - (time.perf_counter() - began)))
            if free is not None:
                await free.acquire()
            if time.perf_counter() - began >= run.seconds:
                break
            task = asyncio.create_task(self._counted(number))
            open_.add(task)
            task.add_done_callback(open_.discard)
            if free is not None:
                task.add_done_callback(lambda _: free.release())
            number += 1
        await asyncio.gather(*open_)
        self.results.seconds = time.perf_counter() - began
        return self.results

    async def _counted(self, number: int) -> None:
        try:
            await self._converse(number, self._count)
        except Failed as error:
            self.results.failures[str(error)] += 1

    async def _converse(self, number: int, take: Any) -> None:
        """Every turn of a conversation, with what was said before."""
        said: list[dict[str, str]] = []
        text = ""
        for index, turn in enumerate(self._load.conversation(number)):
            if index:
                await asyncio.sleep(self._run.think_seconds)
            if self._run.chat:
                said.append({"role": "user", "content": str(turn.prompt)})
                body: dict[str, Any] = {"messages": said}
            else:
                prompt = turn.prompt
                body = {"prompt": prompt if isinstance(prompt, list) else text + prompt}
            answer = await self._client.stream(self._path, body | self._fields(turn))
            said.append({"role": "assistant", "content": answer.text})
            text = f"{body.get('prompt', '')}{answer.text} "
            if take is not None:
                take(number, index, turn, answer)

    @property
    def _path(self) -> str:
        return "/v1/chat/completions" if self._run.chat else "/v1/completions"

    def _fields(self, turn: Turn) -> dict[str, Any]:
        fields = {
            "max_tokens": turn.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._run.extra,
        }
        return fields | ({"model": self._run.model} if self._run.model else {})

    def _key(self, number: int, index: int) -> tuple[str, int]:
        return str(number % self._load.distinct if self._load.distinct else number), index

    def _learn(self, number: int, index: int, _: Turn, answer: Answer) -> None:
        self._right[self._key(number, index)] = answer.text

    def _count(self, number: int, index: int, turn: Turn, answer: Answer) -> None:
        if self._run.extra.get("ignore_eos") and answer.output_tokens != turn.output_tokens:
            raise Failed(f"{turn.output_tokens} tokens were asked for, {answer.output_tokens} came")
        right = self._right.get(self._key(number, index))
        if right is not None and answer.text != right:
            raise Failed("the text is not what the same prompt got when it was alone")
        self.results.add(answer, self._began, self._run.limits)


async def first_model(client: Client) -> str:
    """The name of the first model that a server has."""
    import msgspec

    data = msgspec.json.decode(await client.get("/v1/models"))
    with contextlib.suppress(KeyError, IndexError, TypeError):
        return str(data["data"][0]["id"])
    raise Failed("/v1/models names no model")
