"""An observation that has everything."""

from __future__ import annotations

import pytest

from pageant.actors.observer.exposition import HISTOGRAMS
from pageant.actors.runtime.histogram import Histogram
from pageant.actors.scheduler.counters import SchedulerCounters
from pageant.actors.scheduler.speculation import SpeculationCounters
from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.fronting import HttpStatistics
from pageant.protocol.scheduling import SchedulerStatistics
from pageant.protocol.statistics import ExecutorStatistics, FrontendStatistics, Observation
from pageant.protocol.supervision import ActorEntry, ActorStatistics, Handled, NodeStatistics, Traffic
from pageant.protocol.tiers import TierStatistics


def front_node() -> NodeStatistics:
    """A node with a scheduler that has handled and sent."""
    handled = ActorStatistics(
        incarnation=3,
        mailbox_depth=4,
        mailbox_depth_max=9,
        handled=7,
        seconds=0.5,
        stale=1,
        tasks=2,
        kinds={"Submit": Handled(7, 0.5)},
    )
    plans = Traffic(actor="scheduler", kind="StepPlan", sent=2, sent_bytes=200, received=1, received_bytes=64)
    return NodeStatistics(
        node="front",
        pid=1,
        delivered=5,
        sent=4,
        received=3,
        refused=2,
        dead_letters={"actor down": 1},
        actors={"scheduler": handled},
        cpu_seconds=1.5,
        resident_bytes=2**20,
        traffic=(plans,),
    )


@pytest.fixture
def everything() -> Observation:
    """One of each thing that can be observed."""
    histograms = {name: Histogram((1.0,)).statistics() for name in HISTOGRAMS}
    steps = {"iteration_tokens_total", "step_seconds"}
    tier = TierStatistics(
        name="host",
        num_blocks=8,
        blocks_used=3,
        blocks_saved=5,
        blocks_restored=2,
        blocks_lost=1,
        tokens_hit=32,
    )
    pool = PoolStatistics(
        num_blocks=100,
        blocks_free=75,
        blocks_cached=50,
        blocks_held=25,
        tokens_queried=1000,
        tokens_hit=400,
        evictions=6,
        tiers=(tier,),
    )
    speculation = SpeculationCounters(verifications=3, drafts_proposed=12, drafts_accepted=7)
    counters = vars(SchedulerCounters(preemptions=2, steps=11)) | vars(speculation)
    return Observation(
        models={"": "demo"},
        at=10.0,
        actors=(ActorEntry(name="scheduler", node="front", incarnation=3, up=True, restarts=2),),
        nodes={"front": front_node()},
        frontends={
            "http": FrontendStatistics(
                num_open=1,
                ended={"stop": 3},
                errors={"deadline": 1},
                prompt_tokens=20,
                output_tokens=30,
                histograms={name: counts for name, counts in histograms.items() if name not in steps},
                fields_without_effect={"x": 1},
                http_errors={"400": 2},
            )
        },
        https={"http": HttpStatistics(open_requests=1, streamed_tokens=17)},
        schedulers={
            "scheduler": SchedulerStatistics(
                num_waiting=2,
                num_running=3,
                counters=counters | {"drafts_accepted_at_0": 4, "drafts_accepted_at_1": 3},
            )
        },
        pools={"blocks": pool},
        executors={
            "executor/0": ExecutorStatistics(
                device="cpu",
                dtype="bfloat16",
                num_blocks=100,
                block_size=16,
                memory_bytes={"weights": 7},
                busy_seconds=2.5,
                steps=11,
                rows=30,
                tokens=50,
                histograms={name: histograms[name] for name in steps},
            )
        },
    )
