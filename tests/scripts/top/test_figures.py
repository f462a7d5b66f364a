from collections import Counter

import msgspec
import pytest
from rich.console import Console

from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.scheduling import SchedulerStatistics
from pageant.protocol.statistics import FrontendStatistics, HistogramCounts, Observation, OpenRequestEntry
from pageant.protocol.supervision import ActorEntry, ActorStatistics, NodeStatistics, Traffic
from pageant.scripts.top.figures import figures, quantile
from pageant.scripts.top.view import view


def look(
    at, *, tokens=0, handled=0, seconds=0.0, latencies=(0, 0, 0), held=0, cpu=0.0, sent=0, drafts=(0, 0)
):
    """A server with one of each, whose counters stand there."""
    counted = HistogramCounts(bounds=(0.1, 1.0), counts=latencies, sum=0.5 * sum(latencies))
    request = OpenRequestEntry(
        request_id="r-1", seconds=at, num_sequences=1, num_prompt_tokens=7, num_output_tokens=3
    )
    frontend = FrontendStatistics(
        num_open=1,
        ended={"stop": tokens // 10},
        errors={"overloaded": tokens // 100},
        prompt_tokens=0,
        output_tokens=tokens,
        histograms={"time_to_first_token_seconds": counted},
        open=(request,),
    )
    echo = ActorStatistics(
        incarnation=1,
        mailbox_depth=2,
        mailbox_depth_max=5,
        handled=handled,
        seconds=seconds,
        stale=0,
        tasks=0,
    )
    flow = Traffic(actor="scheduler", kind="StepPlan", sent=1, sent_bytes=sent, received=0, received_bytes=0)
    node = NodeStatistics(
        node="front",
        pid=1,
        delivered=0,
        sent=0,
        received=0,
        refused=0,
        dead_letters={},
        actors={"scheduler": echo},
        cpu_seconds=cpu,
        resident_bytes=2**20,
        traffic=(flow,),
    )
    pool = PoolStatistics(
        num_blocks=10,
        blocks_free=10 - held,
        blocks_cached=1,
        blocks_held=held,
        tokens_queried=tokens,
        tokens_hit=tokens // 4,
        evictions=0,
    )
    counters = {"drafts_proposed": drafts[0], "drafts_accepted": drafts[1]}
    return Observation(
        models={"": "demo"},
        at=at,
        actors=(
            ActorEntry(name="scheduler", node="front", incarnation=1, up=True, restarts=1),
            ActorEntry(name="tokenizer", node="back", incarnation=1, up=False),
        ),
        nodes={"front": node},
        frontends={"http": frontend},
        schedulers={"scheduler": SchedulerStatistics(num_waiting=1, num_running=2, counters=counters)},
        pools={"blocks": pool},
        executors={},
    )


BEFORE = look(10.0, tokens=100, handled=50, seconds=1.0, latencies=(5, 5, 0), cpu=3.0)
AFTER = look(
    12.0, tokens=300, handled=450, seconds=1.5, latencies=(5, 9, 0), held=4, cpu=4.0, sent=4096, drafts=(8, 6)
)


def test_what_happened_between_two_looks_is_given_per_second():
    found = figures(BEFORE, AFTER)
    engine = found.engine
    assert (found.seconds, engine.running, engine.waiting) == (2.0, 2, 1)
    assert (engine.output_tokens, engine.ended, engine.errors) == (100.0, 10.0, 1.0)
    assert engine.drafts_accepted == 0.75
    (pool,) = found.pools
    assert (pool.held, pool.blocks, pool.hit_rate) == (4, 10, 0.25)
    scheduler, tokenizer = found.actors
    assert (scheduler.messages, scheduler.handling, scheduler.mailbox, scheduler.restarts) == (
        200.0,
        0.25,
        2,
        1,
    )
    assert scheduler.bytes == 2048 and not tokenizer.up and tokenizer.messages == 0
    assert found.nodes[0].cpu == 0.5
    assert found.requests[0].request_id == "r-1" and found.num_requests == 1


def test_latencies_are_those_of_the_time_between():
    latency = figures(BEFORE, AFTER).engine.latencies["ttft"]
    assert (latency.count, latency.mean) == (4, 0.5)
    assert latency.p50 == pytest.approx(0.55) and latency.p99 == pytest.approx(0.991)
    assert figures(AFTER, AFTER).engine.latencies["ttft"].p50 is None


def test_a_counter_that_went_back_is_of_a_new_life():
    found = figures(AFTER, look(13.0, tokens=30, latencies=(1, 0, 0)))
    assert found.engine.output_tokens == 30.0
    assert found.engine.latencies["ttft"].count == 1


@pytest.mark.parametrize("share,expected", [(0.0, 0.0), (0.4, 1.0), (0.6, 1.5), (0.8, 2.0), (1.0, 2.0)])
def test_quantiles_are_read_from_buckets(share, expected):
    counts = Counter({1.0: 2, 2.0: 2, float("inf"): 1})
    assert quantile(counts, share) == pytest.approx(expected), "above the last bound it is that bound"


def test_the_screen_has_it_all_and_json_too():
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(view(figures(BEFORE, AFTER), 40))
    text = console.export_text()
    for part in (
        "2 running, 1 waiting",
        "100 output tokens/s",
        "4 of 10 blocks",
        "25% of prompt tokens cached",
    ):
        assert part in text, text
    for part in ("scheduler", "25.0%", "back (down)", "r-1", "75% of drafts accepted", "ttft 550 991"):
        assert part in text, text
    assert msgspec.json.decode(msgspec.json.encode(figures(BEFORE, AFTER)))["engine"]["running"] == 2
