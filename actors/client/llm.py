"""`LLM`: the sync face, for scripts and batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self, Unpack

import msgspec

from pageant.actors.client.asking import (
    Asked,
    CallSettings,
    as_prompts,
    asked,
)
from pageant.actors.client.batching import Batch
from pageant.actors.client.beams import BeamSearchParams, check_beam_params, next_place
from pageant.actors.client.chats import as_conversations, check_conversation, split_options
from pageant.actors.client.llm_engine import LLMEngine
from pageant.actors.client.members import Members
from pageant.actors.client.metrics import Metric
from pageant.actors.client.operating import SyncOperations
from pageant.actors.client.outputs import RequestOutput
from pageant.actors.client.pooling import PoolingMethods
from pageant.actors.client.progress import LoadProgress
from pageant.actors.client.sampling_params import AnySamplingParams, SamplingParams
from pageant.actors.client.session import SWAP_SECONDS
from pageant.actors.client.settings import EngineSettings, TopologyLike, session_of
from pageant.actors.client.transcribing import TranscribingMethods
from pageant.actors.client.vllm_names.engine_args import as_settings
from pageant.actors.client.vllm_names.methods import LLM as LLM_MEMBERS
from pageant.actors.frontend.beam_search import BeamSearchOutput
from pageant.actors.frontend.prompts import (
    Conversation,
    Prompt,
    RequestSettings,
    check_prompt,
)
from pageant.actors.runtime.recorder import KINDS
from pageant.protocol import sampling
from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import RequestOutputKind
from pageant.protocol.scheduling import SchedulerStatistics
from pageant.protocol.supervision import NodeStatistics

ParamsOfMany = AnySamplingParams | Sequence[AnySamplingParams] | None


class LLM(Members, PoolingMethods, TranscribingMethods, SyncOperations):
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

    _table = LLM_MEMBERS

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
        self._enqueued: list[Batch] = []
        with LoadProgress(progress) as bar:
            self._session.start(bar.update)

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> Self:
        """A model with the arguments that `EngineArgs` keeps."""
        return cls(**as_settings(engine_args))

    @cached_property
    def llm_engine(self) -> LLMEngine:
        """The same model, asked one request and one step at a time."""
        return LLMEngine.over(self._session)

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
        params: ParamsOfMany = None,
        **given: Unpack[CallSettings],
    ) -> list[RequestOutput]:
        """Completes prompts, batched together; the outputs are in the prompts' order.

        Args:
            prompts: texts or lists of token ids, mixed as you like; or a single one. vLLM's `{"prompt": ...}` and
                `{"prompt_token_ids": ...}` are taken too.
            params: for all prompts, or one for each; None is `default_params`. Whatever their `output_kind`,
                only final outputs come back. `sampling_params` is another name.
            given: see `CallSettings`; for all prompts, but for lists of `priority` and `lora_request`.

        Raises:
            BadRequest: names the prompt by its index. What can be seen without tokenizing is, before any
                of them is started; the first error ends the call, and aborts the rest.
            RequestFailed, PeerGone: an actor died with a request in its hands.
        """
        return self._run(*self._prompts(prompts, params, given))

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: ParamsOfMany = None,
        use_tqdm: Any = None,
        lora_request: Any = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> list[RequestOutput]:
        """Answers conversations: a list of messages, or a list of such lists.

        Args:
            messages: `{"role": ..., "content": ...}`, in order. Contents are texts or lists of parts of text;
                `tool_calls`, `tool_call_id` and `reasoning_content` are read as they are over HTTP.
            sampling_params: as `params` of `generate`, which is another name.
            add_generation_prompt: whether the beginning of the answer is rendered.
            continue_final_message: the last message is the beginning of the answer.
            tools: reach the template, as OpenAI's API has them.
            chat_template_kwargs: further variables of the template.
            given: see `CallSettings`.

        Raises:
            BadRequest: names the conversation and the message by their indices. See `generate`.
        """
        return self._run(*self._chats(messages, _chat_arguments(locals())))

    def enqueue(
        self, prompts: Prompt | Sequence[Prompt], params: ParamsOfMany = None, **given: Any
    ) -> list[str]:
        """Begins what `generate` does, and returns the requests' names. `wait_for_completion` returns the outputs."""
        return self._enqueue(*self._prompts(prompts, params, given))

    def enqueue_chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: ParamsOfMany = None,
        **given: Any,
    ) -> list[str]:
        """Begins what `chat` does, and returns the requests' names. `wait_for_completion` returns the outputs."""
        return self._enqueue(*self._chats(messages, {**given, "sampling_params": sampling_params}))

    def wait_for_completion(self, output_type: Any = None, *, use_tqdm: Any = None) -> list[RequestOutput]:
        """Waits for all that was enqueued; returns the outputs in that order."""
        waiting, self._enqueued = self._enqueued, []
        shown = self._progress if use_tqdm is None else bool(use_tqdm)
        try:
            for batch in waiting:
                batch.wait(shown)
        except BaseException:
            for batch in waiting:
                batch.abort()
            raise
        return [output for batch in waiting for output in batch.outputs()]

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: Any = None,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
        **settings: Unpack[RequestSettings],
    ) -> list[BeamSearchOutput]:
        """The best `beam_width` completions of each prompt that a beam search finds; see `BeamSearchParams`."""
        session, limits, params = self._session, self._session.limits, check_beam_params(params)
        self._load_adapters(lora_request)
        many = as_prompts(prompts)
        own = asked(self._session.limits, many, None, {**settings, "lora_request": lora_request})
        checked = [
            _at(index, check_prompt, prompt, limits, limits.defaults) for index, prompt in enumerate(many)
        ]
        searches = [_at(index, session.begin_search, one, params) for index, one in enumerate(checked)]
        while going := [(index, search) for index, search in enumerate(searches) if not search.done]:
            beams = [(index, search, beam) for index, search in going for beam in search.prompts()]
            drawn = Asked(
                params=[search.request_params(limits.vocab_size) for _, search, _ in beams],
                settings=[own.settings[index] for index, _, _ in beams],
                lora_requests=[own.lora_requests[index] for index, _, _ in beams],
                progress=False,
            )
            outputs = iter(self._run([beam for _, _, beam in beams], drawn))
            for _, search in going:
                search.advance([next_place(next(outputs)) for _ in search.prompts()])
        return [session.end_search(search) for search in searches]

    def get_metrics(self) -> list[Metric]:
        """Return counters, gauges and histograms under vLLM's names, where it has the same thing.

        Raises:
            Unsupported: the model was not loaded with `disable_log_stats=False`.
        """
        return self._metrics()

    def reset_mm_cache(self) -> None:
        """Does nothing: what images, videos and sounds became is kept by their content."""

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request, prompt and output together, that the running engine takes."""
        return self._session.limits.max_model_len

    @property
    def default_params(self) -> SamplingParams:
        """Return the parameters of prompts without any: those of the checkpoint's generation_config.json."""
        return SamplingParams.of(self._session.limits.defaults)

    def _prompts(self, prompts: Any, params: Any, given: Mapping[str, Any]) -> tuple[list[Any], Asked]:
        """Checked prompts, and what comes with them."""
        self._load_adapters(given.get("lora_request"))
        many, limits = as_prompts(prompts), self._session.limits
        own = asked(limits, many, params, given)
        checked = [
            _at(index, check_prompt, prompt, limits, one)
            for index, (prompt, one) in enumerate(zip(many, own.params, strict=True))
        ]
        return checked, own

    def _chats(self, messages: Any, given: dict[str, Any]) -> tuple[list[Any], Asked]:
        """Checked conversations, and what comes with them."""
        self._load_adapters(given.get("lora_request"))
        many = as_conversations(messages)
        options, rest = split_options(given)
        checked = [_at(i, check_conversation, one, options) for i, one in enumerate(many)]
        return checked, asked(self._session.limits, many, rest.pop("params", None), rest)

    def _run(self, prompts: list[Any], own: Asked) -> list[RequestOutput]:
        batch = self._batch(prompts, own)
        batch.run(self._progress if own.progress is None else own.progress)
        return batch.outputs()

    def _enqueue(self, prompts: list[Any], own: Asked) -> list[str]:
        batch = self._batch(prompts, own)
        batch.submit()
        self._enqueued.append(batch)
        return batch.request_ids

    def _batch(self, prompts: list[Any], own: Asked) -> Batch:
        return Batch(self._session, prompts, _final_only(own.params), own.settings, own.lora_requests)

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
        """Return the numbers of requests, and the scheduler's counters."""
        return self._session.scheduler_statistics()

    def pool_statistics(self) -> PoolStatistics:
        """Return the state of the KV pool."""
        return self._session.pool_statistics()


def _chat_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `chat` but for its messages, by name."""
    rest = given.pop("given")
    return {**rest, **{name: one for name, one in given.items() if name not in ("self", "messages")}}


def _at(index: int, check: Any, *arguments: Any) -> Any:
    """Names which of the prompts is at fault."""
    try:
        return check(*arguments)
    except BadRequest as error:
        raise BadRequest(f"prompts[{index}]: {error}", error.parameter) from None


def _final_only(params: list[sampling.SamplingParams]) -> list[sampling.SamplingParams]:
    """Return the parameters with only a final output; equal objects stay one object."""
    final, each = RequestOutputKind.FINAL_ONLY, {id(one): one for one in params}
    replaced = {name: msgspec.structs.replace(one, output_kind=final) for name, one in each.items()}
    return [replaced[id(one)] for one in params]
