"""Two observations of a server, as rates and shares of the time between them."""

from __future__ import annotations

from collections import Counter

import msgspec

from pageant.protocol.statistics import Observation, OpenRequestEntry
from pageant.protocol.supervision import ActorStatistics

LATENCIES = {
    "ttft": "time_to_first_token_seconds",
    "itl": "inter_token_latency_seconds",
    "e2e": "e2e_request_latency_seconds",
    "queue": "request_queue_time_seconds",
}


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Latency over so many values in the time, in seconds; None where there were none."""

    count: int
    mean: float | None
    p50: float | None
    p99: float | None


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas together. Rates are per second."""

    running: int
    waiting: int
    prompt_tokens: float
    output_tokens: float
    ended: float
    errors: float
    preemptions: float
    latencies: dict[str, Latency]
    drafts_accepted: float | None  # share; None without speculation


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """KV blocks, now; the share of prompt tokens found in the cache, in the time."""

    name: str
    blocks: int
    held: int
    cached: int
    hit_rate: float | None
    evictions: float


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Shares are of the time; memory in bytes."""

    name: str
    device: str
    utilisation: float
    steps: float
    tokens: float
    memory: dict[str, int]
    asleep: bool = False


class ActorRow(msgspec.Struct, frozen=True, kw_only=True):
    """`handling` is the share of the time that it spent in handlers."""

    name: str
    node: str
    up: bool
    restarts: int
    mailbox: int
    mailbox_max: int
    messages: float
    handling: float
    bytes: float


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """`cpu` is in cores."""

    name: str
    pid: int
    cpu: float
    memory: int
    dead_letters: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of everything that is shown."""

    model: str
    seconds: float
    engine: Engine
    pools: list[Pool]
    devices: list[Device]
    actors: list[ActorRow]
    nodes: list[NodeRow]
    requests: list[OpenRequestEntry]
    num_requests: int


def figures(before: Observation, after: Observation) -> Figures:
    """Return what happened from one look to the next. A counter that went back is of a new life: it counts whole."""
    rates = _Rates(before, after)
    requests = [one for frontend in after.frontends.values() for one in frontend.open]
    return Figures(
        model=", ".join(after.models.values()),
        seconds=rates.seconds,
        engine=_engine(rates),
        pools=_pools(rates),
        devices=_devices(rates),
        actors=_actors(rates),
        nodes=_nodes(rates),
        requests=sorted(requests, key=lambda one: -one.seconds),
        num_requests=sum(frontend.num_open for frontend in after.frontends.values()),
    )


class _Rates:
    def __init__(self, before: Observation, after: Observation) -> None:
        self.before, self.after = before, after
        self.seconds = max(after.at - before.at, 1e-9)

    def per_second(self, before: float, after: float) -> float:
        """Return a counter's change per second."""
        return (after - before if after >= before else after) / self.seconds


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _engine(rates: _Rates) -> Engine:
    totals = []
    for seen in (rates.before, rates.after):
        counts: Counter[str] = Counter()
        for scheduler in seen.schedulers.values():
            counts.update(scheduler.counters)
        for frontend in seen.frontends.values():
            counts["prompt_tokens"] += frontend.prompt_tokens
            counts["output_tokens"] += frontend.output_tokens
            counts["all_ended"] += sum(frontend.ended.values())
            counts["errors"] += sum(frontend.errors.values()) + sum(frontend.http_errors.values())
        totals.append(counts)
    rate = {name: rates.per_second(totals[0][name], totals[1][name]) for name in totals[1]}
    return Engine(
        running=sum(one.num_running for one in rates.after.schedulers.values()),
        waiting=sum(one.num_waiting for one in rates.after.schedulers.values()),
        prompt_tokens=rate.get("prompt_tokens", 0.0),
        output_tokens=rate.get("output_tokens", 0.0),
        ended=rate.get("all_ended", 0.0),
        errors=rate.get("errors", 0.0),
        preemptions=rate.get("preemptions", 0.0),
        latencies={name: _latency(rates, metric) for name, metric in LATENCIES.items()},
        drafts_accepted=_share(rate.get("drafts_accepted", 0.0), rate.get("drafts_proposed", 0.0)),
    )


def _latency(rates: _Rates, metric: str) -> Latency:
    """Return a latency over all frontends, between the looks."""
    counts: Counter[float] = Counter()  # by the upper bound
    total = 0.0
    for name, frontend in rates.after.frontends.items():
        new = frontend.histograms.get(metric)
        if new is None:
            continue
        was = rates.before.frontends.get(name)
        old = was.histograms.get(metric) if was is not None else None
        is_newer = old is None or sum(old.counts) > sum(new.counts)
        base = [0] * len(new.counts) if old is None or is_newer else old.counts
        total += new.sum - (0.0 if old is None or is_newer else old.sum)
        for bound, now, then in zip((*new.bounds, float("inf")), new.counts, base, strict=True):
            counts[bound] += now - then
    count = sum(counts.values())
    return Latency(
        count=count,
        mean=_share(total, count),
        p50=quantile(counts, 0.5),
        p99=quantile(counts, 0.99),
    )


def quantile(counts: Counter[float], share: float) -> float | None:
    """Evenly within the bucket that it falls into; above the last bound, that bound."""
    total = sum(counts.values())
    wanted, below, low = share * total, 0, 0.0
    if not total:
        return None
    for bound in sorted(counts):
        inside = counts[bound]
        if below + inside >= wanted and inside:
            return low if bound == float("inf") else low + (bound - low) * (wanted - below) / inside
        below += inside
        low = bound
    return low


def _pools(rates: _Rates) -> list[Pool]:
    found = []
    for name, pool in rates.after.pools.items():
        was = rates.before.pools.get(name, pool)
        queried = rates.per_second(was.tokens_queried, pool.tokens_queried)
        found.append(
            Pool(
                name=name,
                blocks=pool.num_blocks,
                held=pool.blocks_held,
                cached=pool.blocks_cached,
                hit_rate=_share(rates.per_second(was.tokens_hit, pool.tokens_hit), queried),
                evictions=rates.per_second(was.evictions, pool.evictions),
            )
        )
    return found


def _devices(rates: _Rates) -> list[Device]:
    found = []
    for name, device in rates.after.executors.items():
        was = rates.before.executors.get(name, device)
        found.append(
            Device(
                name=name,
                device=device.device,
                utilisation=rates.per_second(was.busy_seconds, device.busy_seconds),
                steps=rates.per_second(was.steps, device.steps),
                tokens=rates.per_second(was.tokens, device.tokens),
                memory=device.memory_bytes,
                asleep=not device.num_blocks,
            )
        )
    return found


def _actors(rates: _Rates) -> list[ActorRow]:
    before, after = _by_actor(rates.before), _by_actor(rates.after)
    found = []
    for entry in rates.after.actors:
        now = after.get(entry.name)
        was = before.get(entry.name, now)
        sent = [_bytes(seen, entry.name) for seen in (rates.before, rates.after)]
        found.append(
            ActorRow(
                name=entry.name,
                node=entry.node,
                up=entry.up,
                restarts=entry.restarts,
                mailbox=now.mailbox_depth if now is not None else 0,
                mailbox_max=now.mailbox_depth_max if now is not None else 0,
                messages=rates.per_second(was.handled, now.handled) if was and now else 0.0,
                handling=rates.per_second(was.seconds, now.seconds) if was and now else 0.0,
                bytes=rates.per_second(*sent),
            )
        )
    return found


def _by_actor(seen: Observation) -> dict[str, ActorStatistics]:
    return {name: actor for node in seen.nodes.values() for name, actor in node.actors.items()}


def _bytes(seen: Observation, actor: str) -> int:
    """Return the bytes sent to and received from other nodes."""
    return sum(
        flow.sent_bytes + flow.received_bytes
        for node in seen.nodes.values()
        for flow in node.traffic
        if flow.actor == actor
    )


def _nodes(rates: _Rates) -> list[NodeRow]:
    found = []
    for name, node in rates.after.nodes.items():
        was = rates.before.nodes.get(name, node)
        found.append(
            NodeRow(
                name=name,
                pid=node.pid,
                cpu=rates.per_second(was.cpu_seconds, node.cpu_seconds),
                memory=node.resident_bytes,
                dead_letters=sum(node.dead_letters.values()),
            )
        )
    return found
