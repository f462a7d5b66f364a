"""A topology that runs in the background of a user's process: what `Engine` and `LLM` both stand on.

The root node has a thread of its own. Everything here may be called from any thread but that one.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from pageant.actors.client.beams import BeamSearchParams
from pageant.actors.client.cast import FRONTEND, HTTP, served_names
from pageant.actors.client.resolved_models import choose_model, resolve_models
from pageant.actors.client.sums import added_pools, added_schedulers
from pageant.actors.frontend.beam_search import BeamSearch, BeamSearchOutput
from pageant.actors.frontend.embeds import EmbeddedPrompt
from pageant.actors.frontend.frontend import Frontend
from pageant.actors.frontend.given_audio import PromptWithAudio
from pageant.actors.frontend.images import PromptWithImages
from pageant.actors.frontend.limits import limits_of
from pageant.actors.frontend.preparing import Prompt
from pageant.actors.frontend.prompts import Limits, check_length, check_vocabulary
from pageant.actors.frontend.requests import Opening
from pageant.actors.frontend.trials import DEATHS_SUSPECT
from pageant.actors.runtime.address import role_of
from pageant.actors.runtime.cluster import Cluster
from pageant.actors.runtime.loop_thread import LoopThread
from pageant.actors.runtime.recorder import Recorder
from pageant.actors.runtime.topology import Topology
from pageant.protocol.allocation import GetPoolStatistics, PoolStatistics
from pageant.protocol.arrays import int32
from pageant.protocol.errors import (
    BadRequest,
    EngineClosed,
    GivenUp,
    PageantError,
    PeerGone,
    StartupError,
)
from pageant.protocol.fronting import Drain, GetServer, ServerAddress
from pageant.protocol.message import Request
from pageant.protocol.roles import EXECUTOR
from pageant.protocol.scheduling import GetSchedulerStatistics, SchedulerStatistics
from pageant.protocol.statistics import ExecutorStatistics, GetExecutorStatistics
from pageant.protocol.supervision import NodeStatistics, Progress, SwapActor, Swapped
from pageant.protocol.tokenizing import Detokenize, Tokenize, Tokenized

if TYPE_CHECKING:
    from pageant.actors.http.server import HttpServer

R = TypeVar("R")

SWAP_SECONDS = 300.0  # an executor loads its weights in that time
ANSWER_SECONDS = 5.0  # beside the time that was given
OPENED_AT_ONCE = 32  # requests
OnProgress = Callable[[Progress], None]


_NOT_SEARCHED: dict[type, str] = {
    EmbeddedPrompt: "prompt_embeds is given",
    PromptWithImages: "the prompt has images",
    PromptWithAudio: "the prompt has a sound",
}


class Session:
    """A running topology with a frontend in this process.

    Args:
        topology: as written; it is resolved, and thereby checked, here.
        model: of several, the one that it speaks to, by either of its names; None is the first.
    """

    def __init__(self, topology: Topology, model: str | None = None) -> None:
        self.topology = topology
        self.resolved, of_models, served = resolve_models(topology)
        self.served = chosen = choose_model(served, model)
        self._limits = {one.replica: limits_of(one)[0] for one in served}[chosen.replica]
        self.replica, settings = chosen.replica, of_models[chosen.replica]
        self._end_tokens: tuple[int, ...] = settings["eos_token_ids"]
        self.model_name: str = next(iter(served_names(topology)), topology.model or chosen.name)
        self.has_chat_template: bool = settings["has_chat_template"]
        self._thread: LoopThread | None = None
        self._cluster: Cluster | None = None
        self._is_open = False
        self._starting: Future[None] | None = None
        self._process = os.getpid()
        self._numbers = itertools.count()
        self._opening: deque[Opening] = deque()  # handed over, on the node's loop

    async def _start(self, on_progress: OnProgress | None) -> None:
        self._cluster = cluster = Cluster(self.resolved, stop_order=(HTTP, FRONTEND), name=self.model_name)
        try:
            await cluster.start()
            async for progress in cluster.startup():
                if on_progress is not None:
                    on_progress(progress)
            await self._learn_limits()
        except BaseException:
            await cluster.stop()
            raise
        self._is_open = True

    async def _learn_limits(self) -> None:
        """Take over how long a request may be, which the executor found out while it started."""
        frontend = self.frontend
        if frontend is not None:
            model = await frontend.ready_model(self.replica)
            self._limits = replace(self._limits, max_model_len=model.max_model_len)

    @property
    def limits(self) -> Limits:
        """Return the present limits of requests. Adapters come and go."""
        frontend = self.frontend
        if frontend is not None:
            adapters = frontend.adapters(self.replica)
            if adapters != self._limits.adapters:
                self._limits = replace(self._limits, adapters=adapters)
        return self._limits

    @property
    def frontend(self) -> Frontend | None:
        """Return this process's frontend, on the node's loop; None while it is restarted."""
        cell = self._cluster.node.cells.get(FRONTEND) if self._cluster is not None else None
        if cell is None or cell.closed:
            return None
        assert isinstance(cell.actor, Frontend), "the frontend lives on the root node"
        return cell.actor

    def start(self, on_progress: OnProgress | None = None) -> None:
        """Starts everything; returns when it is ready.

        Args:
            on_progress: called in the node's thread.

        Raises:
            StartupError: an actor could not be started; with its traceback.
        """
        if self._thread is not None:
            return
        self._thread, self._process = LoopThread("pageant-node"), os.getpid()
        atexit.register(self.stop)
        self._starting = self._thread.run(self._start(on_progress))
        try:
            self._starting.result()
        except BaseException:  # Ctrl-C too
            self._starting.cancel()
            self.stop()
            raise

    def cancel_start(self) -> None:
        """Makes a `start` that another thread waits for raise CancelledError; nothing, once it is done."""
        if self._starting is not None:
            self._starting.cancel()

    def stop(self) -> None:
        """Stops everything: no task, thread, socket or process is left. May be called twice."""
        thread, self._thread = self._thread, None
        self._is_open = False
        if thread is None or self._process != os.getpid():  # what a fork has of it is a memory
            return
        atexit.unregister(self.stop)
        try:
            if self._cluster is not None:
                thread.run(self._cluster.stop()).result()
        finally:
            thread.stop()

    def stop_with(self, owner: object) -> None:
        """Stops as soon as nobody has `owner` any more, which must not be had from here."""
        weakref.finalize(owner, self._stop_soon).atexit = False  # what is at exit is `stop`'s

    def _stop_soon(self) -> None:
        """Stop without waiting: garbage is collected in any thread, the node's own too."""
        thread = self._thread
        if thread is None or self._cluster is None or self._process != os.getpid():
            return
        self._is_open = False

        def stopped(_: object) -> None:
            atexit.unregister(self.stop)
            self._thread = None
            thread.end()

        thread.run(self._cluster.stop()).add_done_callback(stopped)

    def served_at(self) -> str:
        """The models and the addresses of this topology's HTTP servers."""
        found: list[ServerAddress] = [self.ask(name, GetServer()) for name in self.http_servers()]
        models = ", ".join(found[0].models) if found else "nothing"
        return f"{models} on {', '.join(dict.fromkeys(server.url for server in found))}"

    def devices(self) -> dict[str, ExecutorStatistics]:
        """Return what each executor computes on and with, by its name. One that does not say so is left out."""
        found: dict[str, ExecutorStatistics] = {}
        for actor in self.resolved.actors:
            if role_of(actor.name) == EXECUTOR.name:
                with contextlib.suppress(PageantError):
                    found[actor.name] = self.ask(actor.name, GetExecutorStatistics())
        return found

    def drain(self, seconds: float) -> None:
        """Lets the HTTP servers finish what they have, and take nothing more."""
        if self._thread is not None:
            self._thread.run(self._drain(seconds)).result()

    async def _drain(self, seconds: float) -> None:
        assert self._cluster is not None
        node, names = self._cluster.node, self.http_servers()
        asked = (node.ask(name, Drain(seconds=seconds), seconds + ANSWER_SECONDS) for name in names)
        await asyncio.gather(*asked, return_exceptions=True)

    def http_servers(self) -> list[str]:
        """The names of the HTTP servers."""
        return [actor.name for actor in self.resolved.actors if actor.name.partition("/")[0] == HTTP]

    def http_server(self) -> HttpServer | None:
        """The HTTP server of this process, if there is one."""
        cell = self._cluster.node.cells.get(HTTP) if self._cluster is not None else None
        return cast("HttpServer", cell.actor) if cell is not None else None

    def next_request_id(self) -> str:
        """A name that no request of this session has had."""
        return f"request-{next(self._numbers)}"

    def open(self, opening: Opening) -> None:
        """Hands a request over; its outcome goes to its sink."""
        self.open_all([opening])

    def open_all(self, openings: list[Opening]) -> None:
        """Hands several over, with one wake-up."""
        self._check_open()
        self._call(self._open_all, openings)

    def _open_all(self, openings: list[Opening]) -> None:
        """Many go some at a time: the first are computed while the others are on their way."""
        is_first = not self._opening
        self._opening += openings
        if is_first:
            self._open_some()

    def _open_some(self) -> None:
        frontend = self.frontend
        for _ in range(min(OPENED_AT_ONCE, len(self._opening))):
            opening = self._opening.popleft()
            if frontend is not None:
                frontend.open(opening)
            else:
                opening.sink.failed(PeerGone("this process's frontend is being started again; try again"))
                opening.sink.hub.flush()
        if self._opening:
            self._call(self._open_some)

    def abort(self, request_ids: list[str]) -> None:
        """Ends requests; no matter whether they still run, or anything does."""
        self._call(self._abort, request_ids)

    def _abort(self, request_ids: list[str]) -> None:
        if self._opening:
            names = set(request_ids)
            self._opening = deque(one for one in self._opening if one.request_id not in names)
        frontend = self.frontend
        if frontend is not None:
            frontend.abort_all(request_ids)

    def failure(self) -> PageantError | None:
        """Return why no request would be answered any more; None while some are, or an actor is started again."""
        if not self._is_open:
            return EngineClosed("the engine is not running: it was closed, or never started")
        frontend = self.frontend
        lost = None if frontend is None else frontend.lost(self.replica)
        return None if lost is None else GivenUp(lost)

    def _check_open(self) -> None:
        if not self._is_open:
            raise EngineClosed(
                "the engine is not running: it was closed, or never started; start it with `async with engine:` or "
                "`await engine.start()`"
            )
        if self._process != os.getpid():
            raise EngineClosed(f"the engine runs in process {self._process}, of which this one is a fork")

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        if self._thread is not None:
            self._thread.call(function, *arguments)

    # Looking in.

    def statistics(self) -> list[NodeStatistics]:
        """The counters of every node."""
        self._check_open()
        assert self._thread is not None and self._cluster is not None
        return self._thread.run(self._cluster.statistics()).result()

    def scheduler_statistics(self) -> SchedulerStatistics:
        """The scheduler's counters; the sum of them where the model has replicas."""
        found = self._ask_places("scheduler", GetSchedulerStatistics())
        return added_schedulers(found)

    def pool_statistics(self) -> PoolStatistics:
        """Return the state of the KV pool; its integrity is checked when no request runs. The sum of the pools where
        the model has replicas.
        """
        return added_pools(self._ask_places("blocks", GetPoolStatistics()))

    def _ask_places(self, role: str, request: Request[R]) -> list[R]:
        """Ask the actors of a role, one for each place where requests are computed."""
        return [self.ask(f"{prefix}{role}", request) for prefix in self.places()]

    def places(self) -> list[str]:
        """Return the prefixes of the places where requests are computed: the model's own, or those of its replicas."""
        if not self.served.is_replicated:
            return [self.replica]
        frontend = self.frontend
        return [] if frontend is None else frontend.places(self.replica)

    def tokenize(self, prompt: Tokenize | npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the token ids of a checked prompt, int32 [tokens].

        Raises:
            BadRequest: the prompt is at fault.
        """
        if not isinstance(prompt, Tokenize):
            return prompt
        answer = self.ask(f"{self.replica}tokenizer", prompt, deaths_max=DEATHS_SUSPECT)
        if not isinstance(answer, Tokenized):
            raise BadRequest(answer.reason, answer.parameter)
        check_vocabulary(answer.token_ids, self.limits.vocab_size)
        check_length(len(answer.token_ids), self.limits.max_model_len)
        return answer.token_ids

    def begin_search(self, prompt: Prompt, params: BeamSearchParams) -> BeamSearch:
        """Return a beam search from a checked prompt; raises `BadRequest` where it is more than tokens."""
        for kind, what in _NOT_SEARCHED.items():
            if isinstance(prompt, kind):
                raise BadRequest(f"{what}; expected a text or token ids: beams are of tokens", "prompt")
        assert isinstance(prompt, Tokenize | np.ndarray), "others were refused"
        prompt_ids, ends = self.tokenize(prompt), self._end_tokens
        return BeamSearch(prompt_ids, params.settings(), ends, self.limits.max_model_len)

    def end_search(self, search: BeamSearch) -> BeamSearchOutput:
        """Return the beams that a search found, as text."""
        token_ids = [token for beam in search.best for token in beam]
        counts = int32([len(beam) for beam in search.best])
        request = Detokenize(counts=counts, token_ids=int32(token_ids))
        answer = self.ask(f"{self.replica}tokenizer", request, deaths_max=DEATHS_SUSPECT)
        return search.output(answer.texts)

    def start_recording(self, path: Path, kinds: Sequence[str], *, texts: bool) -> Recorder:
        """Start to record the messages that the actors receive, into a new file."""
        self._check_open()
        assert self._thread is not None and self._cluster is not None
        recorder = Recorder(self._cluster.node, path, topology=self.model_name, kinds=kinds, texts=texts)
        self._thread.run(recorder.start()).result()
        return recorder

    def stop_recording(self, recorder: Recorder) -> None:
        """The file is complete when this returns."""
        if self._thread is not None:
            self._thread.run(recorder.stop()).result()

    def swap(self, actor: str, cls: str, options: Mapping[str, Any], timeout: float) -> int:
        """See `Engine.swap`."""
        swap = SwapActor(name=actor, cls=cls, options=json.dumps(dict(options)))
        swapped: Swapped = self.ask("supervisor", swap, timeout)
        if swapped.error:
            raise StartupError(f"{actor} goes on as it was: {swapped.error}")
        return swapped.incarnation

    def ask(self, address: str, request: Any, timeout: float = 30.0, *, deaths_max: int | None = None) -> Any:
        """Asks any actor of the topology; with `deaths_max`, so many lives of it (see `Actor.ask`)."""
        return self.asking(address, request, timeout, deaths_max=deaths_max).result()

    def asking(
        self, address: str, request: Any, timeout: float = 30.0, *, deaths_max: int | None = None
    ) -> Future[Any]:
        """Ask without waiting. Cancelling the future cancels the handler."""
        self._check_open()
        assert self._thread is not None and self._cluster is not None
        asked = self._cluster.node.ask(
            address, request, timeout, again=deaths_max is not None, deaths_max=deaths_max
        )
        return self._thread.run(asked)
