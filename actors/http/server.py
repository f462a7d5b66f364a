"""The HTTP server: a frontend whose users come over the network."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from pageant.actors.frontend.frontend import Frontend
from pageant.actors.frontend.limits import limits_of
from pageant.actors.frontend.loading import LIFECYCLE
from pageant.actors.frontend.peers import Peers
from pageant.actors.http import (
    about,
    killing,
    listening,
    operating,
    replicas,
    swapping,
    watching,
)
from pageant.actors.http.anthropic import messages
from pageant.actors.http.app import make_app
from pageant.actors.http.chat.conversation import VOLATILE_LINES, ConversationRules, check_lines
from pageant.actors.http.defaults import RequestDefaults
from pageant.actors.http.fetching import check_domains
from pageant.actors.http.health import Health
from pageant.actors.http.openai import (
    adapters,
    chat,
    chat_batch,
    chat_socket,
    completions,
    invocations,
    models,
    responses,
    tokens,
    transcriptions,
)
from pageant.actors.http.openai.response_store import ResponseStore
from pageant.actors.http.page.feed import StatisticsFeed
from pageant.actors.http.page.files import INDEX, page_files
from pageant.actors.http.page.routes import file_routes, stream_routes
from pageant.actors.http.pooling import embeddings, scores
from pageant.actors.http.served import Served
from pageant.actors.http.service import Service
from pageant.actors.http.siblings import Siblings
from pageant.actors.http.streams import Pacemaker
from pageant.actors.http.tenants import CacheScope, Caller, Keys
from pageant.actors.parsers.formats import (
    AUTO,
    REASONING_MARKS,
    check_names,
    formats_of,
    tool_formats,
)
from pageant.actors.parsers.names import REASONING_PARSERS, TOOL_PARSERS
from pageant.actors.runtime import receives
from pageant.actors.runtime.address import model_of, replica_of
from pageant.protocol.fronting import (
    AbortedNamed,
    AbortNamed,
    Drain,
    Drained,
    FollowResponse,
    GetHttpStatistics,
    GetServer,
    HttpStatistics,
    ResponseEvents,
    ServedModel,
    ServerAddress,
    UsedResponse,
    UseResponse,
)
from pageant.protocol.lifecycle import AddAdapter, LearnModel, ModelLearned, RemoveAdapter
from pageant.protocol.message import Request
from pageant.protocol.replicas import AddReplica, DrainReplica, RemoveReplica
from pageant.protocol.serving import OutputBatch
from pageant.protocol.statistics import GetMetricsPage, GetObservation, Observation
from pageant.protocol.supervision import ActorChanged, ActorUp, Directory, GetDirectory

log = logging.getLogger("pageant.http")

STATISTICS_SECONDS = 5.0
OPEN_SHOWN_MAX = 100
FAMILIES = (
    *(completions, chat, chat_batch, chat_socket, invocations, models, tokens, messages),
    *(embeddings, scores, transcriptions),
)


class HttpServer(Frontend):
    """Serves OpenAI's API."""

    class Options(Frontend.Options, frozen=True, kw_only=True):
        """Options of the server.

        Attributes:
            served: see `Frontend`.
            host, port: where to listen; port 0 is any that is free.
            api_keys: a request must bear one of them; without any, everybody is served. Each is a tenant: what it makes
                is found under it alone.
            operator_keys: keys that see and end what any tenant made. A key that is the only one is an operator's too.
            cache_scope: who shares cached prefixes: `all`, or each `tenant` apart, since times tell what others asked.
                None is `tenant` where there are several keys.
            allowed_origins: web pages of these origins may call (`*` is all); without any, none may.
            allowed_media_domains: images and videos of requests are fetched from these; without any, none are.
            ssl_certfile, ssl_keyfile, ssl_keyfile_password, ssl_ca_certs: serve over TLS with these.
            tool_call_parser: how models write calls of tools: auto (by their chat templates), none, or one of
                `parsers.formats.TOOL_FORMATS` or a plugin, or vLLM's name of it; or these by the models' names.
            reasoning_parser: likewise, how they mark what they think: auto, none, or one of `REASONING_MARKS` there.
            page: serve the web page at `/`.
            demo: let operators kill actors and swap policies from the web page, as `admin_routes` does.
            admin_routes: serve the routes for operators, such as `/pause`.
            runtime_adapters: let callers load and unload adapters. Where there are keys, an adapter is there for the
                key that loaded it, and for operators.
            volatile_prompt_lines: regular expressions of lines that are left out at the front of a system message: they
                change with every request, so that no prefix would be found in the cache. Those of known clients.
            trust_request_chat_template: requests may bring chat templates of their own (`chat_template`).
            default_chat_template_kwargs: variables of chat templates, where a request does not set them.
            enable_force_include_usage: end every stream with the usage, whatever its request says.
            return_tokens_as_token_ids: write tokens in log-probabilities as `token_id:N`, unless a request says
                otherwise.
            strict_fields: refuse requests with fields that have no effect here.
            max_body_mib: of a request, in MiB.
            max_open_requests: at a time; further ones are answered with 429.
            backlog: connections that the system holds back for us.
            limit_concurrency: connections at a time; further ones are answered with 503.
            health_seconds: the step loop is healthy if something comes of it within this time.
            keep_alive_seconds: a stream that is silent for longer gets a comment.
            stall_seconds: a client that reads nothing for longer is dropped.
        """

        host: str = "127.0.0.1"
        port: int = 8000
        api_keys: tuple[str, ...] = ()
        operator_keys: tuple[str, ...] = ()
        cache_scope: CacheScope | None = None
        allowed_origins: tuple[str, ...] = ()
        allowed_media_domains: tuple[str, ...] = ()
        ssl_certfile: str | None = None
        ssl_keyfile: str | None = None
        ssl_keyfile_password: str | None = None
        ssl_ca_certs: str | None = None
        tool_call_parser: str | dict[str, str] = AUTO
        reasoning_parser: str | dict[str, str] = AUTO
        page: bool = True
        demo: bool = False
        admin_routes: bool = False
        runtime_adapters: bool = False
        volatile_prompt_lines: tuple[str, ...] = VOLATILE_LINES
        trust_request_chat_template: bool = False
        default_chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
        enable_force_include_usage: bool = False
        return_tokens_as_token_ids: bool = False
        strict_fields: bool = False
        max_body_mib: int = 64
        max_open_requests: int = 8192
        backlog: int = 2048
        limit_concurrency: int = 16_384
        health_seconds: float = 10.0
        keep_alive_seconds: float = 15.0
        stall_seconds: float = 60.0

        def __post_init__(self) -> None:
            if not 0 <= self.port <= 65_535:
                raise ValueError(f"port is {self.port}; expected 0 to 65535")
            for name in ("max_body_mib", "max_open_requests", "backlog", "limit_concurrency"):
                if getattr(self, name) < 1:
                    raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
            for name in ("health_seconds", "keep_alive_seconds", "stall_seconds"):
                if not 0 < getattr(self, name) < 1e6:
                    raise ValueError(f"{name} is {getattr(self, name)}; expected a number above 0")
            check_names("tool_call_parser", self.tool_call_parser, tool_formats(), TOOL_PARSERS)
            marks = (REASONING_MARKS, REASONING_PARSERS)
            check_names("reasoning_parser", self.reasoning_parser, *marks)
            check_lines(self.volatile_prompt_lines)
            check_domains(self.allowed_media_domains)
            for name in ("api_keys", "operator_keys"):
                if not all(key.isascii() and key for key in getattr(self, name)):
                    raise ValueError(f"{name} has an empty key, or one that is not ASCII")
            if {*self.api_keys} & {*self.operator_keys}:
                raise ValueError("a key is in api_keys and in operator_keys; expected it in one of them")
            if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
                raise ValueError("ssl_certfile and ssl_keyfile are given together, or not at all")

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.port: int = options.port

    async def on_start(self) -> None:
        await super().on_start()
        options = self.options
        pacemaker = Pacemaker(options.keep_alive_seconds, options.stall_seconds)
        self._keys = Keys(options.api_keys, options.operator_keys)
        self.service = Service(
            self,
            [await self.offload(self._served, model) for model in options.served],
            pacemaker,
            self.clock.wall,
            self.random.getrandbits,
            strict_fields=options.strict_fields,
            num_open_max=options.max_open_requests,
            cache_scope=self._keys.cache_scope(options.cache_scope),
            rules=ConversationRules(
                options.volatile_prompt_lines,
                options.trust_request_chat_template,
                options.default_chat_template_kwargs,
            ),
            media_domains=options.allowed_media_domains,
            defaults=RequestDefaults(options.enable_force_include_usage, options.return_tokens_as_token_ids),
        )
        self._health = Health(self.service, lambda replica: self._peers[replica].is_at_rest)
        self._responses, self._siblings = ResponseStore(), Siblings(self)
        self._feed = StatisticsFeed(lambda: self._observe(*watching.STEPS_FOLLOWED), self.clock.now)
        self.spawn(pacemaker.run())
        await self._listen()

    def _served(self, model: ServedModel) -> Served:
        from pageant.models.added_tokens import read_added_tokens
        from pageant.models.tokenizer_files import read_chat_templates, read_tokenizer_config

        templates = [] if model.chat_template is None else [model.chat_template]
        if not templates and model.tokenizer is not None:
            templates += read_chat_templates(Path(model.tokenizer)).values()
        named = [
            one if isinstance(one, str) else one.get(model.name, AUTO)
            for one in (self.options.tool_call_parser, self.options.reasoning_parser)
        ]
        config = None if model.tokenizer is None else read_tokenizer_config(Path(model.tokenizer))
        if config is not None and model.chat_template is not None:
            config["chat_template"] = model.chat_template
        formats = formats_of(templates, *named)
        if model.tokenizer is not None:
            formats = formats.with_token_ids(read_added_tokens(Path(model.tokenizer)))
        return Served(
            *(model.name, model.replica, *limits_of(model), formats),
            tokenizer_config=config,
            aliases=model.aliases,
            end_tokens=model.eos_token_ids,
        )

    async def _listen(self) -> None:
        options = self.options
        routes = [route for family in FAMILIES for route in family.routes(self.service)]
        routes += responses.routes(self.service, self._responses, self._siblings)
        files = await self.offload(page_files) if options.page else {}
        routes += about.routes(self.service, self._observe, files.get(INDEX))
        routes += file_routes(files) if files else []
        routes += stream_routes(self.service, self._feed, watching.as_seen_by)
        routes += watching.routes(
            self.service,
            lambda: self.is_ready,
            lambda: self._health.check(options.health_seconds),
            self._siblings,
            self._page,
            self._observe,
        )
        operators = operating.Operators(self.service, self._ask_lifecycle, enabled=options.admin_routes)
        routes += operating.routes(operators) + replicas.routes(operators)
        killers = operating.Operators(
            self.service, self._ask_lifecycle, enabled=options.admin_routes or options.demo
        )
        routes += killing.routes(killers, self._directory, self._observe) + swapping.routes(killers, self.ask)
        routes += adapters.routes(self.service, self._ask_lifecycle, enabled=options.runtime_adapters)
        app = make_app(
            routes,
            keys=self._keys,
            allowed_origins=options.allowed_origins,
            body_bytes_max=options.max_body_mib * 2**20,
            errors=self.service.errors,
        )
        self._socket = listening.listener(options.host, options.port, shared="/" in self.name)
        self.port = self._socket.getsockname()[1]
        tls = {name: getattr(options, f"ssl_{name}") for name in listening.TLS_OPTIONS}
        self._server = listening.server(
            app, backlog=options.backlog, connections_max=options.limit_concurrency, tls=tls
        )
        self._serving = asyncio.create_task(self._server.serve([self._socket]), name="http")
        log.debug("%s is there, on %s", ", ".join(self.service.models), self.url)

    @property
    def url(self) -> str:
        """Return the server's URL."""
        scheme = "https" if self.options.ssl_certfile else "http"
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        return f"{scheme}://{host}:{self.port}"

    async def on_stop(self) -> None:
        await super().on_stop()
        await self._feed.close()
        self._server.should_exit = True
        await asyncio.wait([self._serving])
        self._socket.close()

    def on_crash(self, error: BaseException) -> None:
        super().on_crash(error)
        self._serving.cancel()
        self._socket.close()  # the next life listens there

    @receives
    def address(self, _: GetServer) -> ServerAddress:
        """Return the server's URL and models."""
        return ServerAddress(url=self.url, models=tuple(self.service.models))

    @receives
    def http_statistics(self, _: GetHttpStatistics) -> HttpStatistics:
        """Return the server's counters."""
        return HttpStatistics(
            open_requests=self.service.num_open,
            streamed_tokens=self.service.pacemaker.streamed_tokens,
        )

    @receives
    def response_used(self, asked: UseResponse) -> UsedResponse:
        """A client has come to another server with a response that it was given here."""
        return self._responses.use(asked)

    @receives(concurrent=True)
    async def response_followed(self, asked: FollowResponse) -> AsyncIterator[ResponseEvents]:
        """The same, and wants its events."""
        async for events in self._responses.follow(asked):
            yield ResponseEvents(events=events.decode())

    @receives
    def abort_named(self, asked: AbortNamed) -> AbortedNamed:
        """Abort requests by their names for clients, of those that run here."""
        who = Caller(asked.tenant, asked.is_operator)
        return AbortedNamed(names=tuple(self.service.abort_all(asked.names, who)))

    @receives(concurrent=True)
    async def drain(self, request: Drain) -> Drained:
        """Takes no more requests, and answers when those that are open have ended, or after that time."""
        self.service.draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.service.idle.wait(), request.seconds)
        return Drained(open_requests=self.service.num_open)

    @property
    def is_ready(self) -> bool:
        """Tell whether requests are accepted."""
        return not self.service.draining and all(peers.complete for peers in self._peers.values())

    async def _ask_lifecycle(self, request: Request[Any], seconds: float) -> Any:
        """Ask the lifecycle actor; its next life, if it dies with what may be done twice."""
        again = not isinstance(
            request, AddAdapter | RemoveAdapter | AddReplica | DrainReplica | RemoveReplica
        )
        return await self.ask(LIFECYCLE, request, timeout=seconds, again=again)

    async def _page(self) -> str:
        return (await self.ask("observer", GetMetricsPage(), timeout=STATISTICS_SECONDS)).text

    async def _observe(self, steps_max: int = 0, steps_seconds: float | None = None) -> Observation:
        asked = GetObservation(open_max=OPEN_SHOWN_MAX, steps_max=steps_max, steps_seconds=steps_seconds)
        return await self.ask("observer", asked, timeout=STATISTICS_SECONDS)

    async def _directory(self) -> Directory:
        return await self.ask("supervisor", GetDirectory(), timeout=STATISTICS_SECONDS)

    def http_counts(self) -> dict[str, dict[str, int]]:
        """Return counters of requests that came over HTTP."""
        service = self.service
        return {
            "fields_without_effect": dict(service.fields_passed_over),
            "http_errors": dict(service.errors),
        }

    @receives
    def peer_up(self, event: ActorUp) -> None:
        super().peer_up(event)
        self._fit(model_of(replica_of(event.address)))

    @receives
    def peer_changed(self, event: ActorChanged) -> None:
        super().peer_changed(event)
        self._fit(model_of(replica_of(event.address)))

    @receives
    def learn(self, message: LearnModel) -> ModelLearned:
        learned = super().learn(message)
        self._fit(message.state.replica)
        return learned

    def _fit(self, replica: str) -> None:
        """Let routes know how a model is served now."""
        if (peers := self._peers.get(replica)) is None:
            return  # the actor is no model's
        self.service.fit(replica, peers.model.max_model_len, peers.adapters, peers.adapter_owners)
        self.service.compute_with(replica, peers.weight_version, loaded=not peers.is_asleep)

    def _spread(self, batch: OutputBatch, peers: Peers) -> None:
        super()._spread(batch, peers)
        self._health.stepped(peers.model.replica)
