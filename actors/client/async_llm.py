"""`AsyncLLM`: an engine for asyncio under vLLM's names. `Engine` is the same under ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Self, Unpack

from pageant.actors.client.asking import load_missing
from pageant.actors.client.engine import Engine
from pageant.actors.client.lora import LoRARequest
from pageant.actors.client.members import Members
from pageant.actors.client.outputs import RequestOutput
from pageant.actors.client.sampling_params import AnySamplingParams
from pageant.actors.client.settings import EngineSettings, TopologyLike
from pageant.actors.client.vllm_names.engine_args import as_settings
from pageant.actors.client.vllm_names.methods import ASYNC_LLM
from pageant.actors.frontend.prompts import Prompt
from pageant.protocol.errors import PageantError

DRAIN_LOOK_SECONDS = 0.05


class AsyncLLM(Members, Engine):
    """An engine that has started when it is made, and whose `generate` is asked as vLLM's is.

        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="path"))
        async for output in engine.generate("Explain lambda", SamplingParams(), request_id="1"):
            ...
        engine.shutdown()

    Args:
        model, topology, settings: see `Engine`.

    Raises:
        ArgumentError, TopologyError, CheckpointError: what is wrong, and where; before anything is started.
        StartupError: an actor could not be started; with its traceback.
    """

    _table = ASYNC_LLM

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        topology: TopologyLike | None = None,
        **settings: Unpack[EngineSettings],
    ) -> None:
        super().__init__(model, topology=topology, **settings)
        self._session.start()
        self._adapter_numbers: dict[int, str] = {}

    @classmethod
    def from_engine_args(cls, engine_args: Any, *unused: Any, **also: Any) -> Self:
        """An engine with the arguments that `AsyncEngineArgs` keeps."""
        return cls(**{"disable_log_stats": False, **as_settings(engine_args)})

    def generate(  # type: ignore[override]
        self,
        prompt: Prompt,
        sampling_params: AnySamplingParams | None = None,
        request_id: str | None = None,
        **given: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Streams a prompt's completion; see `Engine.generate`.

        Args:
            request_id: a name that is free; None is one of ours.
            given: see `CallSettings`: `lora_request`, `priority`, `trace_headers`, ...
        """
        if load_missing(given.get("lora_request"), self._session.limits):
            return self._generate_later(prompt, sampling_params, request_id, given)
        return super().generate(prompt, sampling_params, request_id=request_id, **given)

    async def _generate_later(
        self,
        prompt: Prompt,
        params: AnySamplingParams | None,
        request_id: str | None,
        given: dict[str, Any],
    ) -> AsyncIterator[RequestOutput]:
        """The same, once its adapter is loaded."""
        await self.add_lora(given["lora_request"])
        async for output in super().generate(prompt, params, request_id=request_id, **given):
            yield output

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """See `Engine.abort`."""
        await super().abort(request_id)

    # Whether all is well.

    @property
    def dead_error(self) -> PageantError | None:
        """Return why no request is answered any more; None while they are."""
        return self._session.failure()

    @property
    def errored(self) -> bool:
        """Tell whether requests are not answered any more."""
        return self.dead_error is not None

    @property
    def is_running(self) -> bool:
        """Tell whether requests are answered."""
        return not self.errored

    @property
    def is_stopped(self) -> bool:
        """Tell whether requests are not answered any more."""
        return self.errored

    async def check_health(self) -> None:
        """Return where requests are answered.

        Raises:
            PageantError: why they are not.
        """
        if (error := self.dead_error) is not None:
            raise error
        await self.scheduler_statistics()

    async def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Return where a request would be taken now; whether a queue is full is told when it comes."""
        await self.check_health()

    async def get_status(self) -> dict[str, Any]:
        """Return how it stands."""
        paused = not self.errored and await self.is_paused()
        state = "stopped" if self.errored else "paused" if paused else "running"
        return {"status": state, "requests": 0 if self.errored else self.get_num_unfinished_requests()}

    def get_num_unfinished_requests(self) -> int:
        """Return how many requests have not ended."""
        frontend = self._session.frontend
        return 0 if frontend is None else frontend.num_open

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300) -> None:
        """Return when no request is open any more.

        Raises:
            TimeoutError: some were after so many seconds.
        """
        async with asyncio.timeout(drain_timeout):
            # Nobody tells of it: requests of other loops and of HTTP servers count, too.
            while self.get_num_unfinished_requests():  # noqa: ASYNC110
                await asyncio.sleep(DRAIN_LOOK_SECONDS)

    def shutdown(self, timeout: float | None = None) -> None:
        """End every request, actor, process and thread. `timeout`, in seconds, is vLLM's and has no effect."""
        self._session.stop()

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """Return what the model can be asked for by this class, which pools nothing."""
        return ("generate",) if self._session.limits.generates else ()

    async def is_tracing_enabled(self) -> bool:
        """Tell whether traces are exported."""
        return self._session.topology.settings.get("otlp_traces_endpoint") is not None

    async def do_log_stats(self) -> None:
        """Does nothing: counters are asked for."""

    async def reset_mm_cache(self) -> None:
        """Does nothing: what images, videos and sounds became is kept by their content."""

    async def reset_encoder_cache(self) -> None:
        """Does nothing: what images, videos and sounds became is kept by their content."""

    # Operating.

    async def pause_generation(self, *, mode: Any = "abort", clear_cache: bool = True) -> None:
        """See `Engine.pause`."""
        await self.pause(mode, clear_cache=clear_cache)

    async def resume_generation(self) -> None:
        """See `Engine.resume`."""
        await self.resume()

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter; returns True."""
        if lora_request.lora_name not in self._session.limits.adapters:
            await self.add_adapter(
                lora_request.lora_name, lora_request.lora_path, in_place=lora_request.load_inplace
            )
        self._adapter_numbers[lora_request.lora_int_id] = lora_request.lora_name
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        """Unload the adapter that `add_lora` or a request brought under this number; False if there is none."""
        name = self._adapter_numbers.pop(lora_id, None)
        if name is None:
            return False
        await self.remove_adapter(name)
        return True

    async def list_loras(self) -> set[int]:
        """Return the numbers of the adapters that `add_lora` or requests brought."""
        return set(self._adapter_numbers)
