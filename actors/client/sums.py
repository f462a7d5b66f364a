"""Sums of the counters of several replicas. What is no count of things is not added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.scheduling import SchedulerStatistics
from pageant.protocol.tiers import TierStatistics


def added_schedulers(found: Sequence[SchedulerStatistics]) -> SchedulerStatistics:
    """Return the sum of schedulers' counters; the idle time is that of the busiest."""
    if len(found) == 1:
        return found[0]
    counters: Counter[str] = Counter()
    for one in found:
        counters.update(one.counters)
    return SchedulerStatistics(
        num_waiting=sum(one.num_waiting for one in found),
        num_running=sum(one.num_running for one in found),
        counters=dict(counters),
        idle_seconds=min((one.idle_seconds for one in found), default=0.0),
    )


def added_pools(found: Sequence[PoolStatistics]) -> PoolStatistics:
    """Return the sum of pools, and of their tiers by name. Every other field counts blocks, tokens or events."""
    if len(found) == 1:
        return found[0]
    tiers: dict[str, list[TierStatistics]] = {}
    for tier in (tier for one in found for tier in one.tiers):
        tiers.setdefault(tier.name, []).append(tier)
    sums = _sums(PoolStatistics, found, but="tiers")
    added = (
        TierStatistics(name=name, **_sums(TierStatistics, some, but="name")) for name, some in tiers.items()
    )
    return PoolStatistics(**sums, tiers=tuple(added))


def _sums(kind: type[msgspec.Struct], found: Sequence[msgspec.Struct], but: str) -> dict[str, Any]:
    names = [field.name for field in msgspec.structs.fields(kind) if field.name != but]
    return {name: sum(getattr(one, name) for one in found) for name in names}
