"""observer ──Get...Statistics──▶ actors; anyone ──GetObservation / GetMetricsPage──▶ observer.

The observer asks each actor for its counters when it is asked itself. Actors send none on their own, so that
an engine that is not watched pays only for the counting. An actor of a user's own without a handler for the
question is left out.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.fronting import HttpStatistics
from pageant.protocol.message import Message, Request
from pageant.protocol.routing import RouterStatistics
from pageant.protocol.scheduling import SchedulerStatistics
from pageant.protocol.storing import StoreStatistics
from pageant.protocol.supervision import ActorEntry, NodeStatistics


class HistogramCounts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A histogram of N buckets and one above them."""

    bounds: tuple[float, ...]
    """The upper bounds of the buckets, rising."""
    counts: tuple[int, ...]
    """N + 1 numbers of values: at most the bound and above the bound before; the last is of values above all
    bounds.
    """
    sum: float
    """The sum of all values."""


class OpenRequestEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An open request."""

    request_id: str
    seconds: float
    """The time since it came."""
    num_sequences: int
    """Sequences that have not ended. The token counts are theirs."""
    num_prompt_tokens: int
    """0 until the prompt is tokenized."""
    num_output_tokens: int
    replicas: tuple[str, ...] = ()
    """Prefixes of the names of the replicas that compute its sequences; empty where there is one."""


class FrontendStatistics(Message, frozen=True, kw_only=True):
    """Counters of a frontend since its start, and its oldest open requests."""

    num_open: int
    ended: dict[str, int]
    """Sequences, by how they ended."""
    errors: dict[str, int]
    """Requests, by what went wrong."""
    prompt_tokens: int
    output_tokens: int
    histograms: dict[str, HistogramCounts]
    """By the name of the metric, in seconds or tokens."""
    open: tuple[OpenRequestEntry, ...] = ()
    """The oldest open requests."""
    fields_without_effect: dict[str, int] = msgspec.field(default_factory=dict)
    """Fields of HTTP requests that had no effect, by name."""
    http_errors: dict[str, int] = msgspec.field(default_factory=dict)
    """HTTP responses that were errors, by status."""


class GetFrontendStatistics(Request[FrontendStatistics], frozen=True, kw_only=True):
    """Ask a frontend for its counters of a model, with at most `open_max` open requests."""

    open_max: int = 0
    replica: str = ""


class StepRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Record of a plan that an executor computed: a step, or several in a row. Counts are of all of them together."""

    number: int
    """Steps of the executor's life, up to and with this one."""
    num_steps: int
    rows: int
    """Rows of each step."""
    new_rows: int
    """Rows whose sequences began, or resumed, with this plan."""
    prefill_tokens: int
    """Computed tokens that were known when their sequence began or resumed."""
    decode_tokens: int
    """Computed tokens that were sampled since; drafts do not count."""
    drafted: int
    accepted: int
    """Drafts that were right."""
    sampled: int
    """Tokens that were sampled, accepted drafts included."""
    came: float
    """When the plan came. Times are in seconds of the executor's monotonic clock."""
    began: float
    """When the computing thread took it up."""
    ended: float
    """When its tokens were there."""
    drafting_seconds: float
    """The part that the proposer took."""
    mask_seconds: float
    """The part in which logits waited for grammars' masks."""


class ExecutorStatistics(Message, frozen=True, kw_only=True):
    """Counters of a device and its steps since the start."""

    device: str
    dtype: str
    num_blocks: int
    block_size: int
    windows: tuple[int | None, ...] = (None,)
    """The attention window of each layer group, see `ExecutorReady`."""
    memory_bytes: dict[str, int]
    """Bytes of weights and KV cache, and the free and total bytes of the device."""
    busy_seconds: float
    """The time in which any step was on the device."""
    steps: int
    rows: int
    tokens: int
    histograms: dict[str, HistogramCounts]
    kernels_loaded: int = 0
    """Variants of GPU kernels that were compiled or read from the disk's cache. A step that needs another is
    slow.
    """
    graphs_captured: int = 0
    """CUDA graphs. A step that needs another is slow."""
    kernels: str = ""
    """The name of the kernels' backend; "" is of a runner without any."""
    max_model_len: int = 0
    """Tokens of the longest request that the KV memory holds."""
    last_steps: tuple[StepRecord, ...] = ()
    """The last plans, the oldest first, as far as they were asked for."""


class GetExecutorStatistics(Request[ExecutorStatistics], frozen=True, kw_only=True):
    """Ask an executor for its counters, with at most `steps_max` of its last plans."""

    steps_max: int = 0
    steps_seconds: float | None = None
    """Leave out plans that ended longer ago."""


class Observation(Message, frozen=True, kw_only=True):
    """Counters of all actors, by the actors' names. An actor that did not answer in time is missing."""

    models: dict[str, str]
    """The models' names by their replicas, where a frontend serves several."""
    at: float
    """Seconds of the observer's monotonic clock."""
    actors: tuple[ActorEntry, ...]
    nodes: dict[str, NodeStatistics]
    frontends: dict[str, FrontendStatistics]
    schedulers: dict[str, SchedulerStatistics]
    pools: dict[str, PoolStatistics]
    executors: dict[str, ExecutorStatistics]
    https: dict[str, HttpStatistics] = msgspec.field(default_factory=dict)
    spans: dict[str, int] = msgspec.field(default_factory=dict)
    """Spans of traces, by what became of them."""
    routers: dict[str, RouterStatistics] = msgspec.field(default_factory=dict)
    stores: dict[str, StoreStatistics] = msgspec.field(default_factory=dict)


class GetObservation(Request[Observation], frozen=True, kw_only=True):
    """Ask the observer for the counters of all actors, with at most `open_max` open requests of each
    frontend and `steps_max` of the last plans of each executor.
    """

    open_max: int = 0
    steps_max: int = 0
    steps_seconds: float | None = None
    """See `GetExecutorStatistics`."""


class MetricsPage(Message, frozen=True, kw_only=True):
    """An observation in Prometheus' text format."""

    text: str


class GetMetricsPage(Request[MetricsPage], frozen=True, kw_only=True):
    """Ask the observer for its page of metrics."""
