"""`Engine`: the async face. Usable from any event loop, from several at once, and from notebooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import msgspec

from pageant.actors.client.asking import Asked, CallSettings, asked
from pageant.actors.client.beams import BeamSearchParams, check_beam_params, next_place
from pageant.actors.client.chats import check_conversation, split_options
from pageant.actors.client.loop_sinks import LoopHub, LoopSink
from pageant.actors.client.operating import AsyncOperations
from pageant.actors.client.outputs import Completion, RequestOutput
from pageant.actors.client.pooling import AsyncPoolingMethods
from pageant.actors.client.sampling_params import AnySamplingParams, SamplingParams, frozen
from pageant.actors.client.session import SWAP_SECONDS, OnProgress
from pageant.actors.client.settings import EngineSettings, TopologyLike, session_of
from pageant.actors.client.transcribing import (
    begin_transcription,
    end_transcription,
    heard_of,
    transcription_settings,
)
from pageant.actors.frontend.beam_search import BeamSearch, BeamSearchOutput
from pageant.actors.frontend.prompts import (
    Conversation,
    Prompt,
    RequestSettings,
    check_name,
    check_params,
    check_prompt,
    check_settings,
)
from pageant.actors.frontend.requests import Opening
from pageant.actors.frontend.transcription import Transcription
from pageant.actors.frontend.transcripts import TranscriptionOutput
from pageant.actors.runtime.recorder import KINDS
from pageant.protocol import sampling
from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.errors import PageantError
from pageant.protocol.message import Request
from pageant.protocol.sampling import RequestOutputKind
from pageant.protocol.scheduling import SchedulerStatistics
from pageant.protocol.supervision import NodeStatistics


class Engine(AsyncPoolingMethods, AsyncOperations):
    """A model, served by a topology of actors in the background.

        async with pageant.Engine("path-or-hub-id") as engine:
            async for output in engine.generate("Explain the with statement"):
                print(output.outputs[0].new_text, end="")

    Args:
        model: a checkpoint's folder, or a hub id; with a topology of several models, the name of one.
        topology: a YAML file or a mapping of that form, under the other arguments.
        settings: see `EngineSettings`: `placement` (`one`: every actor in this process, `each`: each in its
            own, `auto`), `max_num_seqs`, `dtype`, `quantization`, ...

    Raises:
        TopologyError, CheckpointError: what is wrong, and where; before anything is started.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        topology: TopologyLike | None = None,
        on_progress: OnProgress | None = None,
        **settings: Unpack[EngineSettings],
    ) -> None:
        self._session = session_of(model, topology, settings)
        self._session.stop_with(self)
        self._on_progress = on_progress
        self._hubs: dict[asyncio.AbstractEventLoop, LoopHub] = {}
        self._streams: dict[str, LoopSink] = {}  # by the names of requests that are open
        self._waiters: ThreadPoolExecutor | None = None

    @classmethod
    def from_topology(cls, topology: TopologyLike, **settings: Unpack[EngineSettings]) -> Engine:
        """An engine as a YAML file describes it."""
        return cls(topology=topology, **settings)

    # Life.

    async def start(self) -> None:
        """Starts every actor; returns when requests can be served. Done by `async with`.

        Raises:
            StartupError: an actor could not be started; with its traceback.
        """
        try:
            await self._in_thread(self._session.start, self._on_progress)
        except asyncio.CancelledError:  # Ctrl-C while loading
            await self.close()
            raise

    async def close(self) -> None:
        """Ends every request, actor, process and thread. Done by `async with`, at exit, and when nobody has this."""
        await asyncio.shield(self._in_thread(self._session.stop))
        if self._waiters is not None:
            self._waiters.shutdown(wait=False)
            self._waiters = None

    async def __aenter__(self) -> Engine:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # Requests.

    def generate(
        self,
        prompt: Prompt,
        params: AnySamplingParams | None = None,
        *,
        request_id: str | None = None,
        **settings: Unpack[CallSettings],
    ) -> AsyncIterator[RequestOutput]:
        """Streams a prompt's completion: one output per step that brought something.

        Leaving the iteration, or cancelling it, aborts the request and frees its blocks.

        Args:
            prompt: a text, or a list of token ids.
            params: None is `default_params`.
            settings: see `CallSettings`: `priority`, `tenant`, `deadline`, `cache_salt`, `adapter`.

        Raises:
            BadRequest: the prompt or a parameter is out of range; at once.
            Unsupported: the request needs what an actor of this topology does not honour.
            RequestFailed, PeerGone: an actor died with the request in its hands.
            RequestExpired: its deadline passed before it could be submitted.
        """
        own = asked(self._session.limits, [prompt], params, settings)
        return self._run(check_prompt(prompt, self._session.limits, own.params[0]), own, request_id)

    def chat(
        self,
        messages: Conversation,
        params: AnySamplingParams | None = None,
        *,
        request_id: str | None = None,
        **settings: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Streams the answer to a conversation, rendered by the checkpoint's own template.

        Args:
            messages: `{"role": ..., "content": ...}`, in order; see `LLM.chat`.
            settings: see `CallSettings`, and how it is rendered: `tools`, `chat_template_kwargs`,
                `add_generation_prompt`, `continue_final_message`.
        """
        options, rest = split_options(settings)
        checked = check_conversation(messages, options)
        return self._run(checked, asked(self._session.limits, [checked], params, rest), request_id)

    async def complete(
        self,
        prompt: Prompt,
        params: AnySamplingParams | None = None,
        *,
        request_id: str | None = None,
        **settings: Unpack[RequestSettings],
    ) -> RequestOutput:
        """The last output of `generate`."""
        params = check_params(frozen(params), self._session.limits)
        params = msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
        return await _last(self.generate(prompt, params, request_id=request_id, **settings))

    async def beam_search(
        self, prompt: Prompt, params: BeamSearchParams, **settings: Unpack[RequestSettings]
    ) -> BeamSearchOutput:
        """The best `beam_width` completions of a prompt that a beam search finds; see `BeamSearchParams`."""
        session, limits = self._session, self._session.limits
        settings = check_settings(settings, limits.adapters)
        checked = check_prompt(prompt, limits, limits.defaults)
        search: BeamSearch = await self._in_thread(session.begin_search, checked, check_beam_params(params))
        while not search.done:
            beam_params = search.request_params(limits.vocab_size)
            requests = [
                _last(
                    self._stream(
                        beam, beam_params, Completion(session.next_request_id(), beam_params), settings
                    )
                )
                for beam in search.prompts()
            ]
            search.advance([next_place(output) for output in await asyncio.gather(*requests)])
        found: BeamSearchOutput = await self._in_thread(session.end_search, search)
        return found

    async def transcribe(self, audio: Any, **given: Any) -> TranscriptionOutput:
        """Write down what is said in a sound; see `LLM.transcribe`."""
        session, (settings, rest) = self._session, transcription_settings(given)
        own = check_settings(rest, session.limits.adapters)
        found: Transcription = await self._in_thread(begin_transcription, session, audio, settings)
        while not found.done:
            params = found.params()
            completion = Completion(session.next_request_id(), params)
            output = await _last(self._stream(found.prompt(), params, completion, own))
            found.advance(heard_of(output, completion.end))
        text: TranscriptionOutput = await self._in_thread(end_transcription, session, found)
        return text

    def _run(self, prompt: Any, own: Asked, request_id: str | None) -> AsyncIterator[RequestOutput]:
        if request_id is not None:
            check_name("request_id", request_id)
        name = request_id or self._session.next_request_id()
        completion = Completion(name, own.params[0], own.lora_requests[0])
        return self._stream(prompt, own.params[0], completion, own.settings[0])

    async def _stream(
        self,
        prompt: Any,
        params: sampling.SamplingParams,
        completion: Completion,
        settings: RequestSettings,
    ) -> AsyncIterator[RequestOutput]:
        sink, request_id = LoopSink(self._hub(), completion), completion.request_id
        self._streams[request_id] = sink
        self._session.open(Opening(request_id, prompt, params, sink, settings, self._session.replica))
        ended = False
        try:
            while not ended:
                output = await sink.next()
                ended = output.finished
                if sink.completion.failed is not None:
                    raise sink.completion.failure()
                yield output
        except PageantError:
            ended = True
            raise
        finally:
            if self._streams.get(request_id) is sink:
                del self._streams[request_id]
            if not ended:
                self._session.abort([request_id])

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends requests by their names: their last outputs say `abort`. Unknown ones have ended already."""
        names = [request_id] if isinstance(request_id, str) else list(request_id)
        self._session.abort(names)
        for name in names:
            if (sink := self._streams.get(name)) is not None:
                sink.hub.call(sink.end)

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        """Runs what waits for the node's thread: off the user's loop, and in threads of the engine's own,
        since the loop's default ones may be full of what the user waits for."""
        if self._waiters is None:
            self._waiters = ThreadPoolExecutor(4, thread_name_prefix="pageant-wait")
        return await asyncio.get_running_loop().run_in_executor(self._waiters, function, *arguments)

    def _hub(self) -> LoopHub:
        loop = asyncio.get_running_loop()
        hub = self._hubs.get(loop)
        if hub is None:
            for other in [other for other in self._hubs if other.is_closed()]:
                del self._hubs[other]
            hub = self._hubs[loop] = LoopHub(loop, self._session)
        return hub

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request, prompt and output together, that the running engine takes."""
        return self._session.limits.max_model_len

    @property
    def default_params(self) -> SamplingParams:
        """Return the parameters of requests without any: those of the checkpoint's generation_config.json."""
        return SamplingParams.of(self._session.limits.defaults)

    # Looking in.

    @property
    def model_name(self) -> str:
        """Return the model's name: `served_model_name`, or the last part of its path."""
        return self._session.model_name

    @property
    def has_chat_template(self) -> bool:
        """Tell whether the checkpoint has a template for conversations."""
        return self._session.has_chat_template

    async def statistics(self) -> list[NodeStatistics]:
        """The counters of every node and actor."""
        found: list[NodeStatistics] = await self._in_thread(self._session.statistics)
        return found

    async def scheduler_statistics(self) -> SchedulerStatistics:
        """Return the numbers of requests, and the scheduler's counters."""
        found: SchedulerStatistics = await self._in_thread(self._session.scheduler_statistics)
        return found

    async def pool_statistics(self) -> PoolStatistics:
        """Return the state of the KV pool."""
        found: PoolStatistics = await self._in_thread(self._session.pool_statistics)
        return found

    async def swap(
        self,
        actor: str,
        cls: str = "",
        options: Mapping[str, Any] | None = None,
        timeout: float = SWAP_SECONDS,
    ) -> int:
        """Goes on with another class of an actor, or other options, while it serves. No request is lost.

        Args:
            actor: such as `scheduler`, or `executor/0`.
            cls: `module:Class`; "" keeps the class.
            options: laid over the present ones.

        Returns:
            Its new incarnation.

        Raises:
            RemoteError: no such class, or not of that role, or not with these options; nothing has changed.
            StartupError: the successor could not start; the former class lives on.
            DeadlineExceeded: the successor was not up within `timeout` seconds; the same.
        """
        incarnation: int = await self._in_thread(self._session.swap, actor, cls, options or {}, timeout)
        return incarnation

    @asynccontextmanager
    async def record(
        self, path: str | Path, *, texts: bool = False, kinds: Sequence[str] = KINDS
    ) -> AsyncIterator[None]:
        """Record the messages that the actors receive, for as long as the context lasts, for `pageant replay`.

            async with engine.record("busy-hour.recording"):
                ...

        Args:
            path: a new file.
            texts: keep prompts, outputs and other texts; without it, only token ids are kept.
            kinds: the kinds of messages to record, or `*` for all.

        Raises:
            OSError: the file exists already, or (at the end) could not be written to.
        """
        session = self._session
        recorder = await self._in_thread(partial(session.start_recording, texts=texts), Path(path), kinds)
        try:
            yield
        finally:
            await self._in_thread(session.stop_recording, recorder)

    async def ask(self, address: str, request: Any, timeout: float = 30.0) -> Any:
        """Asks any actor of the topology, such as one of your own."""
        if not isinstance(request, Request):
            raise TypeError(f"request is a {type(request).__name__}; expected a Request message")
        return await asyncio.wrap_future(self._session.asking(address, request, timeout))


async def _last(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    last: RequestOutput | None = None
    async for output in outputs:
        last = output
    assert last is not None, "a request has at least one output"
    return last
