"""The HTTP server: a frontend whose users come over the network."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn

from pageant.actors.frontend.frontend import CAST, NOBODY, Frontend, Opening, OpenRequest
from pageant.actors.frontend.http.answers import Answer, Answers
from pageant.actors.frontend.http.app import make_app
from pageant.actors.frontend.http.metrics import ServerStatistics
from pageant.actors.frontend.http.responses import Model
from pageant.actors.frontend.prompts import (
    MAX_LOGPROBS,
    Limits,
    check_conversation,
    check_params,
    check_prompt,
)
from pageant.protocol.allocation import GetPoolStatistics
from pageant.protocol.errors import Overloaded, PageantError, TopologyError
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.scheduling import GetSchedulerStatistics
from pageant.protocol.serving import OutputBatch

log = logging.getLogger("pageant.http")

HEALTH_SECONDS = 10.0
STATISTICS_SECONDS = 5.0
CLOSE_SECONDS = 2  # for the last bytes of answers, when the server stops
FIELDS_COUNTED_MAX = 256  # names that clients make up


class HttpServer(Frontend):
    """Serves OpenAI's API."""

    class Options(Frontend.Options, frozen=True, kw_only=True):
        """Options of the server.

        Attributes:
            model: the checkpoint's folder; its name is what the model is called outside.
            served_model_name: what it is called instead.
            host, port: where to listen; port 0 is any that is free.
            api_keys: a request must bear one of them; without any, everybody is served.
            strict_fields: refuse requests with fields that have no effect here.
            max_body_mib: of a request, in MiB.
            backlog: connections that the system holds back for us.
            limit_concurrency: connections at a time; further ones are answered with 503.
        """

        model: str
        served_model_name: str | None = None
        host: str = "127.0.0.1"
        port: int = 8000
        api_keys: tuple[str, ...] = ()
        strict_fields: bool = False
        max_body_mib: int = 64
        backlog: int = 2048
        limit_concurrency: int = 16_384

        def __post_init__(self) -> None:
            if not 0 <= self.port <= 65_535:
                raise ValueError(f"port is {self.port}; expected 0 to 65535")
            for name in ("max_body_mib", "backlog", "limit_concurrency"):
                if getattr(self, name) < 1:
                    raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
            if not all(key.isascii() and key for key in self.api_keys):
                raise ValueError("api_keys has an empty key, or one that is not ASCII")

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.model_name: str = options.served_model_name or Path(options.model).name
        self.max_body_bytes = options.max_body_mib * 2**20
        self.port: int = options.port
        self._limits = Limits(options.vocab_size, options.max_model_len, MAX_LOGPROBS, SamplingParams())
        self._started = 0
        self._draining = False
        self._idle = asyncio.Event()  # while draining: nothing is open any more
        self._ended: Counter[str] = Counter()
        self._prompt_tokens = self._output_tokens = 0
        self._passed_over: Counter[str] = Counter()

    async def on_start(self) -> None:
        await super().on_start()
        self._started = int(self.clock.wall())
        app = make_app(self)
        self._socket = self._bind()
        self.port = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            backlog=self.options.backlog,
            limit_concurrency=self.options.limit_concurrency,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve([self._socket]), name="http")
        log.info("serving %s on http://%s:%d", self.model_name, self.options.host, self.port)

    def _bind(self) -> socket.socket:
        options = self.options
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((options.host, options.port))
        except OSError as error:
            listener.close()
            place = f"{options.host}:{options.port}"
            raise TopologyError(
                "actors.http.options", f"cannot listen on {place}: {error.strerror}"
            ) from None
        return listener

    async def on_stop(self) -> None:
        await super().on_stop()
        self._server.should_exit = True
        await asyncio.wait([self._serving])
        self._socket.close()

    async def drain(self, seconds: float) -> None:
        """Takes no more requests, and returns when those that are open have ended, or after that time."""
        self._draining = True
        if self.num_open:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), seconds)

    def _forget(self, request: OpenRequest) -> list[str]:
        running = super()._forget(request)
        if self._draining and not self.num_open:
            self._idle.set()
        return running

    # What the routes ask for.

    def now(self) -> int:
        """Seconds since 1970."""
        return int(self.clock.wall())

    def new_id(self, kind: str) -> str:
        """A name for a request."""
        return f"{kind}-{self.random.getrandbits(96):024x}"

    def model(self) -> Model:
        """The model that is served."""
        return Model(id=self.model_name, created=self._started, max_model_len=self.options.max_model_len)

    def complete(self, prompts: Sequence[str | Sequence[int]], params: SamplingParams, name: str) -> Answers:
        """Begins to complete prompts.

        Raises:
            BadRequest: one of them, or a parameter, is out of range.
        """
        return self._begin([check_prompt(one, self._limits, params) for one in prompts], params, name)

    def chat(self, messages: Sequence[dict[str, str]], params: SamplingParams, name: str) -> Answers:
        """Begins to answer a conversation.

        Raises:
            BadRequest: a message, or a parameter, is out of range.
        """
        return self._begin([check_conversation(messages)], params, name)

    def _begin(self, prompts: Sequence[Any], params: SamplingParams, name: str) -> Answers:
        if self._draining:
            raise Overloaded("this server is shutting down")
        params = check_params(params, self._limits)
        answers = [Answer(index) for index in range(len(prompts))]
        names = [f"{name}/{index}" for index in range(len(prompts))]
        for prompt, answer, one in zip(prompts, answers, names, strict=True):
            self.open(Opening(request_id=one, prompt=prompt, params=params, sink=answer))
        return Answers(answers, names, self.abort_all)

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return not self._draining and all(self._peers.role(role) for role in CAST)

    async def healthy(self) -> bool:
        """Whether a token can be computed now: a round trip through every actor."""
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        going = self._begin([check_prompt([0], self._limits, params)], params, self.new_id("health"))
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await going.whole()
        except (PageantError, TimeoutError):
            return False
        return True

    async def statistics(self) -> ServerStatistics:
        """What `/metrics` shows."""
        return ServerStatistics(
            model=self.model_name,
            scheduler=await self.ask("scheduler", GetSchedulerStatistics(), timeout=STATISTICS_SECONDS),
            pool=await self.ask("blocks", GetPoolStatistics(), timeout=STATISTICS_SECONDS),
            requests=self._ended,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            fields_passed_over=self._passed_over,
        )

    def count_passed_over(self, names: Sequence[str]) -> None:
        """A request had fields that have no effect here."""
        for name in names:
            known = name in self._passed_over or len(self._passed_over) < FIELDS_COUNTED_MAX
            self._passed_over[name[:64] if known else "other"] += 1

    def _spread(self, batch: OutputBatch) -> None:
        for index, finished in batch.finished.items():
            self._ended[finished.reason] += 1
            self._output_tokens += finished.num_output_tokens
            request, sample = self._open.get(batch.request_ids[index], NOBODY)
            if request is not None and not sample and isinstance(request.opening.sink, Answer):
                self._prompt_tokens += len(request.opening.sink.prompt_token_ids)
        super()._spread(batch)
