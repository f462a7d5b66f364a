"""observer ──Get...Statistics──▶ everybody; anyone ──GetObservation / GetMetricsPage──▶ observer.

The observer asks each actor for its own counters when it is asked itself; nobody sends any unasked, so that
what is not looked at costs nothing but the counting. An actor of a user's own that has no handler for its
question is left out.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.fronting import HttpStatistics
from pageant.protocol.message import Message, Request
from pageant.protocol.scheduling import SchedulerStatistics
from pageant.protocol.supervision import ActorEntry, NodeStatistics


class HistogramCounts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`counts[i]` values were at most `bounds[i]` and above the bound before; the last, those above them all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class OpenRequestEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request of which `num_sequences` have not ended, with what those have; `seconds` is since it came.

    `num_prompt_tokens` is 0 until it is tokenised.
    """

    request_id: str
    seconds: float
    num_sequences: int
    num_prompt_tokens: int
    num_output_tokens: int


class FrontendStatistics(Message, frozen=True, kw_only=True):
    """A frontend's requests since its start, and the oldest of those that are open.

    `ended` counts sequences by how they ended, and `errors` requests by what went wrong. `histograms` are by the
    name of their metric, in seconds or tokens. Of HTTP: fields of requests that have no effect, and answers that
    are errors, by their status.
    """

    num_open: int
    ended: dict[str, int]
    errors: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    histograms: dict[str, HistogramCounts]
    open: tuple[OpenRequestEntry, ...] = ()
    fields_without_effect: dict[str, int] = msgspec.field(default_factory=dict)
    http_errors: dict[str, int] = msgspec.field(default_factory=dict)


class GetFrontendStatistics(Request[FrontendStatistics], frozen=True, kw_only=True):
    """Ask a frontend for a model's requests, with at most `open_max` of those that are open."""

    open_max: int = 0
    replica: str = ""


class ExecutorStatistics(Message, frozen=True, kw_only=True):
    """A device and its steps since the start. `busy_seconds` is the time in which any was on it.

    `memory_bytes` is what weights and KV cache take, and of the device's memory what is free and all there is. For
    `windows`, each group of layers', see `ExecutorReady`. `kernels_loaded` are the variants of GPU kernels that were
    compiled or read from the disk's cache, `graphs_captured` the CUDA graphs: a step that needs another one is slow.
    """

    device: str
    dtype: str
    num_blocks: int
    block_size: int
    windows: tuple[int | None, ...] = (None,)
    memory_bytes: dict[str, int]
    busy_seconds: float
    steps: int
    rows: int
    tokens: int
    histograms: dict[str, HistogramCounts]
    kernels_loaded: int = 0
    graphs_captured: int = 0


class GetExecutorStatistics(Request[ExecutorStatistics], frozen=True, kw_only=True):
    """Ask an executor."""


class Observation(Message, frozen=True, kw_only=True):
    """Everybody's counters, by the actors' names, `at` seconds of the observer's clock. Who did not answer in time
    is missing. `models` are the models' names by their replicas, where a frontend stands once for each of them;
    `spans` are those of traces, by what became of them."""

    models: dict[str, str]
    at: float
    actors: tuple[ActorEntry, ...]
    nodes: dict[str, NodeStatistics]
    frontends: dict[str, FrontendStatistics]
    schedulers: dict[str, SchedulerStatistics]
    pools: dict[str, PoolStatistics]
    executors: dict[str, ExecutorStatistics]
    https: dict[str, HttpStatistics] = msgspec.field(default_factory=dict)
    spans: dict[str, int] = msgspec.field(default_factory=dict)


class GetObservation(Request[Observation], frozen=True, kw_only=True):
    """Ask the observer, with at most `open_max` open requests of each frontend."""

    open_max: int = 0


class MetricsPage(Message, frozen=True, kw_only=True):
    """An observation in Prometheus' text format."""

    text: str


class GetMetricsPage(Request[MetricsPage], frozen=True, kw_only=True):
    """Ask the observer."""
