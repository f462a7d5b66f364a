"""The requests of one call, computed together: `Batch` collects their outputs on the node's loop."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import Any

from pageant.actors.client.lora import LoRARequest
from pageant.actors.client.outputs import Completion, RequestOutput
from pageant.actors.client.progress import BatchProgress
from pageant.actors.client.session import Session
from pageant.actors.frontend.outputs import Arrived, RequestFailed
from pageant.actors.frontend.prompts import RequestSettings
from pageant.actors.frontend.requests import Opening
from pageant.protocol.errors import BadRequest, PageantError
from pageant.protocol.pooling import PoolingParams
from pageant.protocol.sampling import SamplingParams

REFRESH_SECONDS = 0.1
WINDOW = 4096  # sequences of one call that are open at a time


class Batch:
    """The requests of one call. Outputs are collected on the node's loop; the caller waits for `done`."""

    def __init__(
        self,
        session: Session,
        prompts: Sequence[Any],
        params: Sequence[SamplingParams],
        settings: Sequence[RequestSettings],
        lora_requests: Sequence[LoRARequest | None],
        pooling: Sequence[PoolingParams] | None = None,
    ) -> None:
        """Args: prompts: checked ones, each with its parameters, settings and adapter.
        pooling: what is made of each, where nothing is sampled.
        """
        self._session = session
        self._sinks = [
            _Sink(self, index, Completion(session.next_request_id(), one, lora))
            for index, (one, lora) in enumerate(zip(params, lora_requests, strict=True))
        ]
        each: Sequence[PoolingParams | None] = pooling or [None] * len(prompts)
        self._openings = [
            Opening(sink.completion.request_id, prompt, one, sink, own, self._session.replica, pooling=pooled)
            for sink, prompt, one, own, pooled in zip(
                *(self._sinks, prompts, params, settings, each), strict=True
            )
        ]
        self._next = self._num_open = 0
        self.done: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.num_finished = self.num_tokens = 0

    def run(self, shown: bool) -> None:
        """Computes all of them; with a bar, if it is shown.

        Raises:
            PageantError: the first that went wrong; nothing of this call goes on.
        """
        try:
            self.submit()
            self.wait(shown)
        except BaseException:  # Ctrl-C too
            self.abort()
            raise

    def wait(self, shown: bool) -> None:
        """Waits until all of them are complete, or one has failed, which is raised."""
        with BatchProgress(shown, len(self)) as bar:
            while not concurrent.futures.wait((self.done,), REFRESH_SECONDS if shown else None).done:
                bar.update(self.num_finished, self.num_tokens)
            self.done.result()
            bar.update(self.num_finished, self.num_tokens)

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
        """Count a request that is complete, and open the next ones. Called on the node's loop."""
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
        """End the call with an error; its other requests are aborted. Called on the node's loop."""
        self._next = len(self._openings)
        if not self.done.done():
            self.done.set_exception(error)

    def flush(self) -> None:
        """The caller is told at the end, not per step."""

    def abort(self) -> None:
        """Ends what has not ended."""
        self._next = len(self._openings)
        self._session.abort([sink.completion.request_id for sink in self._sinks if not sink.ended])

    @property
    def request_ids(self) -> list[str]:
        """The names of its requests, in order."""
        return [sink.completion.request_id for sink in self._sinks]

    def __len__(self) -> int:
        return len(self._sinks)

    @property
    def completions(self) -> list[Completion]:
        """Return what has come of every request, in order."""
        return [sink.completion for sink in self._sinks]

    def outputs(self) -> list[RequestOutput]:
        """Return the final output of every request, in order."""
        outputs = [sink.completion.output() for sink in self._sinks]
        return [output for output in outputs if output is not None]


class _Sink:
    """Collects one request, on the node's loop."""

    def __init__(self, batch: Batch, index: int, completion: Completion) -> None:
        self.hub = batch
        self.index = index
        self.completion = completion
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
