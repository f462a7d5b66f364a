"""`LLMEngine`: requests added, stepped and aborted one call at a time, as vLLM's users embed it."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, Unpack

from pageant.actors.client.asking import asked
from pageant.actors.client.lora import LoRARequest
from pageant.actors.client.members import Members
from pageant.actors.client.metrics import Metric
from pageant.actors.client.operating import SyncOperations
from pageant.actors.client.outputs import Completion, RequestOutput
from pageant.actors.client.sampling_params import AnySamplingParams, SamplingParams
from pageant.actors.client.session import Session
from pageant.actors.client.settings import EngineSettings, TopologyLike, session_of
from pageant.actors.client.vllm_names.engine_args import as_settings
from pageant.actors.client.vllm_names.methods import LLM_ENGINE
from pageant.actors.frontend.outputs import Arrived
from pageant.actors.frontend.prompts import Prompt, check_name, check_prompt
from pageant.actors.frontend.requests import Opening
from pageant.protocol.errors import BadRequest, PageantError


class LLMEngine(Members, SyncOperations):
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

    _table = LLM_ENGINE

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        topology: TopologyLike | None = None,
        **settings: Unpack[EngineSettings],
    ) -> None:
        self._begin(session_of(model, topology, settings))
        self._session.stop_with(self)
        self._session.start()

    @classmethod
    def from_engine_args(cls, engine_args: Any, *unused: Any, **also: Any) -> Self:
        """An engine with the arguments that `EngineArgs` keeps."""
        return cls(**{"disable_log_stats": False, **as_settings(engine_args)})

    @classmethod
    def over(cls, session: Session) -> Self:
        """An engine over a session that somebody else starts and stops."""
        engine = cls.__new__(cls)
        engine._begin(session)
        return engine

    def _begin(self, session: Session) -> None:
        self._session = session
        self._open: dict[str, _Sink] = {}
        self._steps = _Steps()
        self._outputs: list[RequestOutput] = []
        self._errors: deque[PageantError] = deque()
        self._adapter_numbers: dict[int, str] = {}

    def close(self) -> None:
        """Ends every request, actor, process and thread. Done by `with`, when nobody has this any more, and at exit."""
        self._session.stop()

    def __enter__(self) -> LLMEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def default_params(self) -> SamplingParams:
        """Return the parameters of requests without any: those of the checkpoint's generation_config.json."""
        return SamplingParams.of(self._session.limits.defaults)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: AnySamplingParams | None = None,
        arrival_time: float | None = None,
        lora_request: LoRARequest | str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        **settings: Any,
    ) -> str:
        """Take a request, and return its name; its outputs come from `step`.

        Args:
            arrival_time: seconds since 1970; vLLM's, without effect: requests are timed when they come.
            settings: see `CallSettings`.

        Raises:
            BadRequest: the name is in use, or the prompt or a parameter is out of range.
        """
        check_name("request_id", request_id)
        if request_id in self._open:
            raise BadRequest(f"request_id {request_id!r} is in use", "request_id")
        self._load_adapters(lora_request)
        theirs = {"lora_request": lora_request, "tokenization_kwargs": tokenization_kwargs}
        given = {**settings, **theirs, "trace_headers": trace_headers, "priority": priority}
        limits = self._session.limits
        own = asked(limits, [prompt], params, given)
        checked = check_prompt(prompt, limits, own.params[0])
        sink = _Sink(self._steps, Completion(request_id, own.params[0], own.lora_requests[0]))
        opening = Opening(request_id, checked, own.params[0], sink, own.settings[0], self._session.replica)
        self._session.open(opening)
        self._open[request_id] = sink
        return request_id

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
        """Tell whether the end of any request has not been returned."""
        return bool(self._open)

    def get_num_unfinished_requests(self) -> int:
        """Return how many requests have not returned their end."""
        return len(self._open)

    def has_unfinished_requests_dp(self, has_unfinished: bool) -> bool:
        """Return the argument: one engine knows the requests of all replicas."""
        return has_unfinished

    def get_metrics(self) -> list[Metric]:
        """See `LLM.get_metrics`."""
        return self._metrics()

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Return what the model can be asked for by this class, which pools nothing."""
        return ("generate",) if self._session.limits.generates else ()

    def reset_mm_cache(self) -> None:
        """Does nothing: what images, videos and sounds became is kept by their content."""

    def reset_encoder_cache(self) -> None:
        """Does nothing: what images, videos and sounds became is kept by their content."""

    def do_log_stats(self) -> None:
        """Does nothing: counters are asked for."""

    def do_log_stats_with_interval(self) -> None:
        """Does nothing: counters are asked for."""

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter; returns True."""
        self._load_adapters(lora_request)
        self._adapter_numbers[lora_request.lora_int_id] = lora_request.lora_name
        return True

    def remove_lora(self, lora_id: int) -> bool:
        """Unload the adapter that `add_lora` brought under this number; False if there is none."""
        name = self._adapter_numbers.pop(lora_id, None)
        if name is not None:
            self.remove_adapter(name)
        return name is not None

    def list_loras(self) -> set[int]:
        """Return the numbers of the adapters that `add_lora` brought."""
        return set(self._adapter_numbers)


_Event = Arrived | tuple[str | None, list[int]] | PageantError


class _Steps:
    """Brings outputs from the node's loop to the caller, a step at a time."""

    def __init__(self) -> None:
        self.ready: queue.SimpleQueue[list[tuple[_Sink, _Event]]] = queue.SimpleQueue()
        self.pending: list[tuple[_Sink, _Event]] = []

    def flush(self) -> None:
        """Pass on the outputs of a step that is complete. Called on the node's loop."""
        pending, self.pending = self.pending, []
        self.ready.put(pending)


class _Sink:
    """Sink of one request: passes its outputs to the engine's steps, on the node's loop."""

    def __init__(self, hub: _Steps, completion: Completion) -> None:
        self.hub = hub
        self.completion = completion

    def accepted(self, prompt: str | None, prompt_token_ids: list[int]) -> None:
        self.hub.pending.append((self, (prompt, prompt_token_ids)))

    def output(self, arrived: Arrived) -> None:
        self.hub.pending.append((self, arrived))

    def failed(self, error: PageantError) -> None:
        self.hub.pending.append((self, error))
