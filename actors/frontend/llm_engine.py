"""`LLMEngine`: requests added, stepped and aborted one call at a time, as vLLM's users embed it."""

from __future__ import annotations

import queue
from collections import deque
from pathlib import Path
from typing import Unpack

from pageant.actors.frontend.outputs import Arrived, Completion, RequestOutput
from pageant.actors.frontend.prompts import (
    Prompt,
    RequestSettings,
    check_name,
    check_params,
    check_prompt,
    check_settings,
)
from pageant.actors.frontend.requests import Opening
from pageant.actors.frontend.settings import EngineSettings, TopologyLike, session_of
from pageant.protocol.errors import BadRequest, PageantError
from pageant.protocol.sampling import SamplingParams


class LLMEngine:
    """A model whose steps the caller waits for. It computes in the background all the while.

        with pageant.LLMEngine("path") as engine:
            engine.add_request("a", "Explain lambda", SamplingParams(max_tokens=64))
            while engine.has_unfinished_requests():
                for output in engine.step():
                    ...

    One thread at a time may use it.

    Args:
        model, topology, settings: see `Engine`.

    Raises:
        TopologyError, CheckpointError: what is wrong, and where; before anything is started.
        StartupError: an actor could not be started; with its traceback.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        topology: TopologyLike | None = None,
        **settings: Unpack[EngineSettings],
    ) -> None:
        self._session = session_of(model, topology, settings)
        self._session.stop_with(self)
        self._open: dict[str, _Sink] = {}
        self._steps = _Steps()
        self._outputs: list[RequestOutput] = []
        self._errors: deque[PageantError] = deque()
        self._session.start()

    def close(self) -> None:
        """Ends every request, actor, process and thread. Done by `with`, when nobody has this any more, and at exit."""
        self._session.stop()

    def __enter__(self) -> LLMEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def default_params(self) -> SamplingParams:
        """Of requests that bring none: what the checkpoint's generation_config.json says."""
        return self._session.limits.defaults

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **settings: Unpack[RequestSettings],
    ) -> None:
        """Takes a request; its outputs come from `step`.

        Raises:
            BadRequest: the name is in use, or the prompt or a parameter is out of range.
        """
        check_name("request_id", request_id)
        if request_id in self._open:
            raise BadRequest(f"request_id {request_id!r} is in use", "request_id")
        params = check_params(params, self._session.limits)
        checked = check_prompt(prompt, self._session.limits, params)
        sink = _Sink(self._steps, request_id, params)
        settings = check_settings(settings, self._session.limits.adapters)
        self._session.open(Opening(request_id, checked, params, sink, settings, self._session.replica))
        self._open[request_id] = sink

    def step(self) -> list[RequestOutput]:
        """Waits for the next step that brings something; returns at once if nothing is open.

        Raises:
            PageantError: a request failed, whose `request_id` it has; it is closed, and the others go on.
        """
        while self._open and not (self._outputs or self._errors):
            self._take(self._steps.ready.get())
        if self._errors:
            raise self._errors.popleft()
        outputs, self._outputs = self._outputs, []
        return outputs

    def _take(self, step: list[tuple[_Sink, _Event]]) -> None:
        touched: dict[_Sink, None] = {}
        for sink, event in step:
            completion = sink.completion
            if self._open.get(completion.request_id) is not sink:
                continue  # it was aborted
            if isinstance(event, PageantError):
                event.request_id = completion.request_id
                self._errors.append(event)
                del self._open[completion.request_id]
            elif isinstance(event, Arrived):
                completion.add(event)
                touched[sink] = None
            else:
                completion.prompt, completion.prompt_token_ids = event
        for completion in (sink.completion for sink in touched):
            if completion.finished:
                self._open.pop(completion.request_id, None)
            if completion.failed is not None:
                failure = completion.failure()
                failure.request_id = completion.request_id
                self._errors.append(failure)
            elif (output := completion.output()) is not None:
                self._outputs.append(output)

    def abort_request(self, request_id: str | list[str]) -> None:
        """Ends requests, of which nothing more comes. Unknown ones have ended already."""
        names = [request_id] if isinstance(request_id, str) else list(request_id)
        for name in names:
            self._open.pop(name, None)
        self._session.abort(names)

    def has_unfinished_requests(self) -> bool:
        """Whether any request has not shown its end."""
        return bool(self._open)

    def get_num_unfinished_requests(self) -> int:
        """How many have not."""
        return len(self._open)


_Event = Arrived | tuple[str | None, list[int]] | PageantError


class _Steps:
    """Brings outputs from the node's loop to the caller, a step at a time."""

    def __init__(self) -> None:
        self.ready: queue.SimpleQueue[list[tuple[_Sink, _Event]]] = queue.SimpleQueue()
        self.pending: list[tuple[_Sink, _Event]] = []

    def flush(self) -> None:
        """On the node's loop: the step is complete."""
        pending, self.pending = self.pending, []
        self.ready.put(pending)


class _Sink:
    """One request: what comes of it goes to the steps, on the node's loop."""

    def __init__(self, hub: _Steps, request_id: str, params: SamplingParams) -> None:
        self.hub = hub
        self.completion = Completion(request_id, params)

    def accepted(self, prompt: str | None, prompt_token_ids: list[int]) -> None:
        self.hub.pending.append((self, (prompt, prompt_token_ids)))

    def output(self, arrived: Arrived) -> None:
        self.hub.pending.append((self, arrived))

    def failed(self, error: PageantError) -> None:
        self.hub.pending.append((self, error))
