"""`LLM`: the sync face, for scripts and batches."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

import msgspec

from pageant.actors.frontend.beams import BeamSearchOutput, BeamSearchParams, check_beam_params
from pageant.actors.frontend.operating import SyncOperations
from pageant.actors.frontend.outputs import Arrived, Completion, RequestFailed, RequestOutput
from pageant.actors.frontend.progress import BatchProgress, LoadProgress
from pageant.actors.frontend.prompts import (
    Conversation,
    Prompt,
    RequestSettings,
    check_conversation,
    check_params,
    check_prompt,
    check_settings,
)
from pageant.actors.frontend.requests import Opening
from pageant.actors.frontend.session import SWAP_SECONDS, Session
from pageant.actors.frontend.settings import EngineSettings, TopologyLike, session_of
from pageant.actors.runtime.recorder import KINDS
from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.errors import BadRequest, PageantError
from pageant.protocol.sampling import RequestOutputKind, SamplingParams
from pageant.protocol.scheduling import SchedulerStatistics
from pageant.protocol.supervision import NodeStatistics

REFRESH_SECONDS = 0.1
WINDOW = 4096  # sequences of one call that are open at a time


class LLM(SyncOperations):
    """A model, ready to generate when constructed.

        with pageant.LLM("path") as llm:
            outputs = llm.generate(["Explain lambda", "What is a set?"], SamplingParams(max_tokens=64))

    Args:
        model, topology, settings: see `Engine`.
        progress: show progress bars where people wait.

    Raises:
        TopologyError, CheckpointError: what is wrong, and where; before anything is started.
        StartupError: an actor could not be started; with its traceback.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        topology: TopologyLike | None = None,
        progress: bool = True,
        **settings: Unpack[EngineSettings],
    ) -> None:
        self._progress = progress
        self._session = session_of(model, topology, settings)
        self._session.stop_with(self)
        with LoadProgress(progress) as bar:
            self._session.start(bar.update)

    def close(self) -> None:
        """Ends every actor, process and thread. Done by `with`, when nobody has this any more, and at exit."""
        self._session.stop()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
        **settings: Unpack[RequestSettings],
    ) -> list[RequestOutput]:
        """Completes prompts, batched together; the outputs are in the prompts' order.

        Args:
            prompts: texts or lists of token ids, mixed as you like; or a single one. vLLM's `{"prompt": ...}` and
                `{"prompt_token_ids": ...}` are taken too.
            params: for all prompts, or one for each; None is `default_params`. Whatever their `output_kind`,
                only final outputs come back.
            settings: see `RequestSettings`; for all prompts.

        Raises:
            BadRequest: names the prompt by its index. What can be seen without tokenizing is, before any
                of them is started; the first error ends the call, and aborts the rest.
            RequestFailed, PeerGone: an actor died with a request in its hands.
        """
        many = _as_prompts(prompts)
        limits, each = self._session.limits, self._params_of(params, len(many))
        checked = [
            _at(index, check_prompt, prompt, limits, one)
            for index, (prompt, one) in enumerate(zip(many, each, strict=True))
        ]
        return self._run(checked, each, settings, progress)

    def chat(
        self,
        conversations: Conversation | Sequence[Conversation],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
        **settings: Unpack[RequestSettings],
    ) -> list[RequestOutput]:
        """Answers conversations: a list of messages, or a list of such lists."""
        if isinstance(conversations, str | bytes | Mapping) or not isinstance(conversations, Sequence):
            kind = type(conversations).__name__
            raise BadRequest(
                f"conversations is a {kind}; expected a list of messages, or of such lists", "messages"
            )
        many: Sequence[Any] = conversations
        if many and isinstance(many[0], Mapping):
            many = [many]
        checked = [_at(i, check_conversation, one) for i, one in enumerate(many)]
        return self._run(checked, self._params_of(params, len(many)), settings, progress)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        **settings: Unpack[RequestSettings],
    ) -> list[BeamSearchOutput]:
        """The best `beam_width` completions of each prompt that a beam search finds; see `BeamSearchParams`."""
        session, limits, params = self._session, self._session.limits, check_beam_params(params)
        settings = check_settings(settings, limits.adapters)
        checked = [
            _at(index, check_prompt, prompt, limits, limits.defaults)
            for index, prompt in enumerate(_as_prompts(prompts))
        ]
        searches = [_at(index, session.begin_search, one, params) for index, one in enumerate(checked)]
        while going := [search for search in searches if not search.done]:
            beams = [(search, beam) for search in going for beam in search.prompts()]
            asked = [search.request_params(limits.vocab_size) for search, _ in beams]
            outputs = iter(self._run([beam for _, beam in beams], asked, settings, False))
            for search in going:
                search.advance([next(outputs) for _ in search.prompts()])
        return [session.end_search(search) for search in searches]

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request, prompt and output together, that the running engine takes."""
        return self._session.limits.max_model_len

    @property
    def default_params(self) -> SamplingParams:
        """Of prompts that bring none: what the checkpoint's generation_config.json says."""
        return self._session.limits.defaults

    def _run(
        self,
        prompts: list[Any],
        params: list[SamplingParams],
        settings: RequestSettings,
        progress: bool | None,
    ) -> list[RequestOutput]:
        settings = check_settings(settings, self._session.limits.adapters)
        params = _final_only(params)
        shown = self._progress if progress is None else progress
        with BatchProgress(shown, len(prompts)) as bar:
            batch = _Batch(self._session, prompts, params, settings)
            try:
                batch.submit()
                refresh = REFRESH_SECONDS if shown else None
                while not concurrent.futures.wait((batch.done,), refresh).done:
                    bar.update(batch.num_finished, batch.num_tokens)
                batch.done.result()
            except BaseException:  # Ctrl-C too: nothing of this call goes on
                batch.abort()
                raise
            bar.update(batch.num_finished, batch.num_tokens)
        return batch.outputs()

    def _params_of(self, params: object, count: int) -> list[SamplingParams]:
        if isinstance(params, Sequence):
            if len(params) != count:
                raise BadRequest(
                    f"params has {len(params)} entries for {count} prompts; expected one each", "params"
                )
            return [check_params(one, self._session.limits, f"params[{i}]") for i, one in enumerate(params)]
        return [check_params(params, self._session.limits)] * count

    # Changing and looking in.

    def swap(
        self,
        actor: str,
        cls: str = "",
        options: Mapping[str, Any] | None = None,
        timeout: float = SWAP_SECONDS,
    ) -> int:
        """See `Engine.swap`."""
        return self._session.swap(actor, cls, options or {}, timeout)

    @contextmanager
    def record(
        self, path: str | Path, *, texts: bool = False, kinds: Sequence[str] = KINDS
    ) -> Iterator[None]:
        """See `Engine.record`."""
        recorder = self._session.start_recording(Path(path), kinds, texts=texts)
        try:
            yield
        finally:
            self._session.stop_recording(recorder)

    def statistics(self) -> list[NodeStatistics]:
        """The counters of every node and actor."""
        return self._session.statistics()

    def scheduler_statistics(self) -> SchedulerStatistics:
        """How many requests there are, and what happened so far."""
        return self._session.scheduler_statistics()

    def pool_statistics(self) -> PoolStatistics:
        """How the KV pool stands."""
        return self._session.pool_statistics()


def _as_prompts(prompts: Any) -> list[Any]:
    """A single prompt, text or ids, as a list of one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise BadRequest(f"prompts is a {type(prompts).__name__}; expected a text, or a list", "prompts")
    if prompts and all(isinstance(token, int) for token in prompts):
        return [prompts]
    return list(prompts)


def _at(index: int, check: Any, *arguments: Any) -> Any:
    """Names which of the prompts is at fault."""
    try:
        return check(*arguments)
    except BadRequest as error:
        raise BadRequest(f"prompts[{index}]: {error}", error.parameter) from None


def _final_only(params: list[SamplingParams]) -> list[SamplingParams]:
    """As they are, but for what each output holds; those that are one stay one."""
    final, each = RequestOutputKind.FINAL_ONLY, {id(one): one for one in params}
    replaced = {name: msgspec.structs.replace(one, output_kind=final) for name, one in each.items()}
    return [replaced[id(one)] for one in params]


class _Batch:
    """The requests of one call. Outputs are collected on the node's loop; the caller waits for `done`."""

    def __init__(
        self,
        session: Session,
        prompts: list[Any],
        params: list[SamplingParams],
        settings: RequestSettings,
    ) -> None:
        self._session = session
        self._sinks = [_Sink(self, index, session.next_request_id(), one) for index, one in enumerate(params)]
        self._openings = [
            Opening(sink.completion.request_id, prompt, one, sink, settings, self._session.replica)
            for sink, prompt, one in zip(self._sinks, prompts, params, strict=True)
        ]
        self._next = self._num_open = 0
        self.done: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.num_finished = self.num_tokens = 0

    def submit(self) -> None:
        """Opens the first window; every end opens the next request."""
        if not self._openings:
            self.done.set_result(None)
        self._session.open_all(self._take_window())

    def _take_window(self) -> list[Opening]:
        """The next requests, as far as there is room for their sequences."""
        first = self._next
        for opening in self._openings[first:]:
            sequences = opening.params.num_sequences
            if self._num_open and self._num_open + sequences > WINDOW:
                break
            self._num_open += sequences
            self._next += 1
        return self._openings[first : self._next]

    def ended(self, index: int) -> None:
        """On the node's loop: one more request is complete."""
        self.num_finished += 1
        self._num_open -= self._openings[index].params.num_sequences
        if self._next < len(self._openings):
            try:
                self._session.open_all(self._take_window())
            except PageantError as error:  # the engine is being closed
                self.fail(error)
        elif self.num_finished == len(self._openings) and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: PageantError) -> None:
        """On the node's loop: the call ends with this error; its other requests are aborted."""
        self._next = len(self._openings)
        if not self.done.done():
            self.done.set_exception(error)

    def flush(self) -> None:
        """The caller is told at the end, not per step."""

    def abort(self) -> None:
        """Ends what has not ended."""
        self._next = len(self._openings)
        self._session.abort([sink.completion.request_id for sink in self._sinks if not sink.ended])

    def outputs(self) -> list[RequestOutput]:
        """Every request's final output, in order."""
        outputs = [sink.completion.output() for sink in self._sinks]
        return [output for output in outputs if output is not None]


class _Sink:
    """Collects one request, on the node's loop."""

    def __init__(self, batch: _Batch, index: int, request_id: str, params: SamplingParams) -> None:
        self.hub = batch
        self.index = index
        self.completion = Completion(request_id, params)
        self.ended = False

    def accepted(self, prompt: str | None, prompt_token_ids: list[int]) -> None:
        self.completion.prompt, self.completion.prompt_token_ids = prompt, prompt_token_ids

    def output(self, arrived: Arrived) -> None:
        self.completion.add(arrived)
        self.hub.num_tokens += len(arrived.token_ids)
        if self.completion.finished:
            self.ended = True
            if self.completion.failed is not None:
                self.failed(self.completion.failure())
            self.hub.ended(self.index)

    def failed(self, error: PageantError) -> None:
        self.ended = True
        if isinstance(error, BadRequest):
            error = BadRequest(f"prompts[{self.index}]: {error}", error.parameter)
        elif isinstance(error, RequestFailed):
            error = RequestFailed(f"prompts[{self.index}]: {error}")
        self.hub.fail(error)
