"""The service behind the routes: takes in and answers requests, converts tokens and texts, and tells whether
all is well.

It stands between the routes, which know shapes, and the server actor, which knows the topology.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

import msgspec
from litestar import Request, Response

from pageant.actors.frontend.embeds import EmbeddedPrompt
from pageant.actors.frontend.prompts import RequestSettings, check_params
from pageant.actors.frontend.requests import Opening
from pageant.actors.http.answers import Answers, Piece
from pageant.actors.http.chat.conversation import DEFAULT_RULES, ConversationRules
from pageant.actors.http.defaults import RequestDefaults
from pageant.actors.http.errors import Draining
from pageant.actors.http.fetching import MediaFetcher
from pageant.actors.http.naming import AS_INSIDE, Names
from pageant.actors.http.reading import read
from pageant.actors.http.served import Models, Served
from pageant.actors.http.shapes import Model
from pageant.actors.http.streams import (
    EventStream,
    Pacemaker,
    StreamWriter,
    encode,
    until_gone,
)
from pageant.actors.http.tenants import CacheScope, Caller, caller
from pageant.actors.parsers.base import OutputParser
from pageant.protocol.arrays import int32
from pageant.protocol.errors import BadRequest, Overloaded
from pageant.protocol.message import Request as Asked
from pageant.protocol.pooling import PoolingParams
from pageant.protocol.sampling import RequestOutputKind, SamplingParams
from pageant.protocol.tokenizing import Detokenize

Http = Request[Any, Any, Any]

FIELDS_COUNTED_MAX = 256  # names that clients make up
PASSED_OVER = "x-pageant-fields-without-effect"
REQUEST_ID = "x-request-id"
WEIGHT_VERSION = "x-pageant-weight-version"
REQUEST_ID_FORM = re.compile(r"[\x21-\x7e]{1,128}")
DEATHS_MAX = 3
ASK_SECONDS = 60.0
EMBEDS_BYTES_MAX = 2**30  # of the prompts of open requests that are embeddings

# Of the HTTP request that the running task answers: what it is a part of at the client's.
_TRACEPARENT: ContextVar[str | None] = ContextVar("traceparent", default=None)


R = TypeVar("R", bound=Any)
A = TypeVar("A")
P = ParamSpec("P")


@dataclass(frozen=True)
class Taken(Generic[R]):
    """A request that was read: for which model, under which name, and headers of its answer."""

    asked: R
    served: Served
    name: str
    headers: dict[str, str]


NO_DEFAULTS = RequestDefaults()


class Engine(Protocol):
    """The part of the server actor that the service needs."""

    def open(self, opening: Opening) -> None:
        """Takes a request."""

    def abort_all(self, request_ids: list[str]) -> None:
        """Ends requests."""

    async def ask(
        self,
        address: str,
        request: Asked[Any],
        timeout: float,
        *,
        again: bool = False,
        deaths_max: int | None = None,
    ) -> Any:
        """Asks an actor."""

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs something in the background."""

    async def offload(self, function: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Runs what takes its time, off the loop."""


class Service:
    """The models that are served, and the requests that are open."""

    def __init__(
        self,
        engine: Engine,
        models: Sequence[Served],
        pacemaker: Pacemaker,
        clock: Callable[[], float],
        random_bits: Callable[[int], int],
        *,
        strict_fields: bool,
        num_open_max: int,
        cache_scope: CacheScope = "all",
        rules: ConversationRules = DEFAULT_RULES,
        defaults: RequestDefaults = NO_DEFAULTS,
        media_domains: Sequence[str] = (),
    ) -> None:
        self._media = MediaFetcher(media_domains)
        self.rules, self._defaults = rules, defaults
        self.engine, self.pacemaker = engine, pacemaker
        self._models = Models(models)
        self._weights: dict[str, str] = {}  # what they are called, by replica
        self._unloaded: set[str] = set()  # replicas of models that sleep
        self.fields_passed_over: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()  # answers that are errors, by their status
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._clock, self._random_bits = clock, random_bits
        self._started, self._born = self.now(), int(clock() * 1e3)
        self._strict_fields, self._num_open_max = strict_fields, num_open_max
        self._cache_scope = cache_scope
        # By tenant and name: tenants choose ids for themselves, and may choose the same ones.
        self._open: dict[tuple[str | None, str], list[Answers]] = {}
        self.num_open = 0
        self._embeds_bytes = 0

    def now(self) -> int:
        """Seconds since 1970."""
        return int(self._clock())

    def new_id(self, kind: str) -> str:
        """A name that nothing has had, here or in an earlier life of this server, whose random bits may be the same."""
        return f"{kind}-{self._born:012x}{self._random_bits(64):016x}"

    def new_call_id(self, length: int | None) -> str:
        """An id for a tool call; of so many letters and digits, for models that know no other ones."""
        return self.new_id("call") if length is None else f"{self._random_bits(4 * length):0{length}x}"

    # Models.

    def model(self, name: str | None) -> Served:
        """The model of a name; without one, the first.

        Raises:
            NotFound: no such model.
        """
        return self._models.find(name)

    @property
    def models(self) -> dict[str, Served]:
        """The models that are there for the caller at hand, by name."""
        return self._models.visible()

    def fit(
        self, replica: str, max_model_len: int, adapters: Iterable[str], owners: Mapping[str, str]
    ) -> None:
        """See `Models.fit`."""
        self._models.fit(replica, max_model_len, adapters, owners)

    def compute_with(self, replica: str, weight_version: str, *, loaded: bool) -> None:
        """Note the version of a model's weights, and whether they are loaded."""
        self._weights[replica] = weight_version
        (self._unloaded.discard if loaded else self._unloaded.add)(replica)

    def weights_of(self, replica: str) -> str:
        """Return what the weights of a model are called."""
        return self._weights.get(replica, "")

    def shown(self, served: Served) -> Model:
        """A model as clients see it."""
        return Model(
            id=served.name,
            created=self._started,
            max_model_len=served.limits.max_model_len,
            root=served.name,
            parent=served.parent,
            weight_version=self.weights_of(served.replica),
            input_modalities=served.limits.modalities,
            loaded=served.replica not in self._unloaded,
        )

    @staticmethod
    def part_of(traceparent: str | None) -> None:
        """Make requests that the running task takes a part of a client's trace."""
        _TRACEPARENT.set(traceparent)

    async def take(self, request: Http, shape: type[R], kind: str) -> Taken[R]:
        """Reads a request.

        Raises:
            BadRequest, NotFound: what is wrong with it.
        """
        self.part_of(request.headers.get("traceparent"))
        body = await self._media.inlined(await request.body())
        return self.check(body, shape, kind, request.headers.get(REQUEST_ID))

    def check(self, body: bytes, shape: type[R], kind: str, request_id: str | None = None) -> Taken[R]:
        """Check and convert the body of a request."""
        asked, passed_over = read(body, shape)
        if hasattr(asked, "with_defaults"):
            asked = asked.with_defaults(self._defaults)
        served = self.model(asked.model)
        if hasattr(asked, "fields_without_effect"):
            passed_over += asked.fields_without_effect(served.formats)
        request_id = getattr(asked, "request_id", None) or request_id
        if request_id is not None and not REQUEST_ID_FORM.fullmatch(request_id):
            raise BadRequest(
                f"request_id is {request_id!r:.200}; expected up to 128 printable ASCII characters without blanks",
                "request_id",
            )
        name = f"{kind}-{request_id}" if request_id is not None else self.new_id(kind)
        headers = {REQUEST_ID: request_id or name}
        if passed_over:
            headers[PASSED_OVER] = self._pass_over(passed_over)
        return Taken(asked, served, name, headers)

    def _pass_over(self, names: Sequence[str]) -> str:
        """Counts fields that have no effect; their names, for a header."""
        for name in names:
            known = name in self.fields_passed_over or len(self.fields_passed_over) < FIELDS_COUNTED_MAX
            self.fields_passed_over[name[:64] if known else "other"] += 1
        named = ", ".join(sorted(names))[:1024].encode("ascii", "backslashreplace").decode()
        named = re.sub(r"[^\x20-\x7e]", "?", named)
        if self._strict_fields:
            raise BadRequest(f"these fields have no effect here: {named}", names[0])
        return named

    # Answers out.

    def begin(
        self,
        served: Served,
        prompts: Sequence[Any],
        params: SamplingParams,
        name: str,
        settings: RequestSettings | None = None,
        parser: Callable[[], OutputParser] | None = None,
        *,
        whole: bool = False,
        is_probe: bool = False,
        names: Names = AS_INSIDE,
        pooling: Sequence[PoolingParams] | None = None,
    ) -> Answers:
        """Begins to answer prompts, which are checked by now.

        Args:
            whole: nobody looks at it before its end.
            is_probe: it is let in whatever is open.
            names: what its client calls its parameters.
            pooling: what is made of each prompt, where nothing is sampled.

        Raises:
            BadRequest: a parameter is out of range.
            Overloaded: too much is open, or the server is shutting down.
        """
        if self.draining and not is_probe:
            raise Draining("this server is shutting down")
        if self.num_open >= self._num_open_max and not is_probe:
            raise Overloaded(f"{self.num_open} requests are open here, at most; try again later")
        num_bytes = sum(prompt.rows.nbytes for prompt in prompts if isinstance(prompt, EmbeddedPrompt))
        if num_bytes and self._embeds_bytes + num_bytes > EMBEDS_BYTES_MAX:
            held = f"open requests here hold {self._embeds_bytes} bytes of prompt_embeds"
            raise Overloaded(f"{held}, of at most {EMBEDS_BYTES_MAX}; try again later")
        settings = settings or {}
        if params.thinking_token_budget is not None and (marks := served.formats.reasoning) is not None:
            settings = {**settings, "reasoning_marks": (marks.begin, marks.end)}
        kind = RequestOutputKind.FINAL_ONLY if whole else RequestOutputKind.DELTA
        if pooling is None:
            params = msgspec.structs.replace(check_params(params, served.limits), output_kind=kind)
        key = caller().tenant, name
        ended = partial(self._ended, key, num_bytes)
        answers = Answers(name, len(prompts), params, parser, self.engine.abort_all, ended, names)
        answers.weight_version = self.weights_of(served.replica)
        self._open.setdefault(key, []).append(answers)
        self.num_open += 1
        self._embeds_bytes += num_bytes
        self.idle.clear()
        each: Sequence[PoolingParams | None] = pooling or [None] * len(prompts)
        for prompt, sink, pooled in zip(prompts, answers.prompts, each, strict=True):
            sink.name = self.new_id(name)  # whatever others are called by their clients
            given = RequestSettings(
                **self._scoped(settings), adapter=served.adapter, traceparent=_TRACEPARENT.get()
            )
            self.engine.open(
                Opening(sink.name, prompt, params, sink, given, served.replica, is_probe, pooled)
            )
        return answers

    def _scoped(self, settings: RequestSettings) -> RequestSettings:
        """Return the settings of a request that shares cached prefixes with those of its own tenant only, if so set."""
        tenant = caller().tenant
        if self._cache_scope == "all" or tenant is None:
            return settings
        return {**settings, "extra_keys": (*settings.get("extra_keys", ()), f"tenant {tenant}")}

    def _ended(self, key: tuple[str | None, str], num_bytes: int, answers: Answers) -> None:
        self._embeds_bytes -= num_bytes
        left = self._open[key]
        left.remove(answers)
        if not left:
            del self._open[key]
        self.num_open -= 1
        if not self.num_open:
            self.idle.set()

    def abort_all(self, names: Iterable[str], who: Caller) -> list[str]:
        """End the requests of these names that `who` may end. Return the names of which there were any."""
        return [name for name in dict.fromkeys(names) if self._abort(name, who)]

    def _abort(self, name: str, who: Caller) -> bool:
        """End the requests of a name, with what they have by now. Return whether there was one."""
        known = [name, *(f"{kind}-{name}" for kind in KINDS)]
        tenants = dict.fromkeys(tenant for tenant, _ in self._open) if who.is_operator else [who.tenant]
        keys = [(tenant, key) for tenant in tenants for key in known]
        found = [answers for key in keys for answers in self._open.get(key, ())]
        for answers in found:
            answers.abort()
        return bool(found)

    # Tokens and texts.

    async def ask(
        self,
        served: Served,
        role: str,
        request: Asked[Any],
        seconds: float = ASK_SECONDS,
        *,
        again: bool = False,
    ) -> Any:
        """Asks an actor of a model; `again` outlives some deaths of it."""
        address, deaths_max = served.replica + role, DEATHS_MAX if again else None
        return await self.engine.ask(address, request, timeout=seconds, again=again, deaths_max=deaths_max)

    async def detokenize(
        self, served: Served, ids: Sequence[Sequence[int]], *, pieces: bool = False
    ) -> tuple[str, ...]:
        """The texts of token ids, special ones included; or their `pieces`, as the vocabulary spells them."""
        counts, flat = int32([len(one) for one in ids]), int32([token for one in ids for token in one])
        request = Detokenize(counts=counts, token_ids=flat, skip_special_tokens=False, pieces=pieces)
        texts: tuple[str, ...] = (await self.ask(served, "tokenizer", request)).texts
        return texts


KINDS = ("transcr", "cmpl", "chatcmpl", "resp", "msg", "embd", "pool", "clas", "scor", "rank")


async def respond(
    service: Service,
    request: Http,
    answers: Answers,
    whole: Callable[[list[Piece]], Awaitable[msgspec.Struct]],
    writer: StreamWriter | None,
    headers: dict[str, str],
) -> Response[Any]:
    """The response: all of an answer when it is there, or a stream of events.

    What fails before anything has come of a stream is an ordinary error response; but silence for long is not
    waited out.

    Raises:
        Exception: what ended the request.
    """
    try:
        async with until_gone(request.receive, answers):
            if writer is None:
                body = encode(await whole(await answers.whole()))
                headers = {**headers, WEIGHT_VERSION: ",".join(map(quote, answers.weight_versions()))}
                return Response(body, headers=headers, media_type="application/json")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(service.pacemaker.tick_seconds):
                    await answers.wait()
            headers = {**headers, WEIGHT_VERSION: quote(answers.weight_version)}
            return EventStream(answers, writer, service.pacemaker, headers)
    except BaseException:
        answers.close()
        raise
