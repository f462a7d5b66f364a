"""Counters of several replicas, added."""

from pageant.actors.client.sums import added_pools, added_schedulers
from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.scheduling import SchedulerStatistics
from pageant.protocol.tiers import TierStatistics


def pool(blocks: int, *tiers: str) -> PoolStatistics:
    counts = dict.fromkeys(("blocks_used", "blocks_saved", "blocks_restored", "blocks_lost", "tokens_hit"), 1)
    return PoolStatistics(
        num_blocks=blocks,
        **dict.fromkeys(
            ("blocks_free", "blocks_cached", "blocks_held", "tokens_queried", "tokens_hit", "evictions"),
            blocks,
        ),
        tiers=tuple(TierStatistics(name=name, num_blocks=blocks, **counts) for name in tiers),
    )


def test_pools_are_added_with_their_tiers_by_name():
    both = added_pools([pool(3, "host", "disk"), pool(4, "host")])
    assert (both.num_blocks, both.blocks_free, both.evictions) == (7, 7, 7)
    assert [(tier.name, tier.num_blocks, tier.tokens_hit) for tier in both.tiers] == [
        ("host", 7, 2),
        ("disk", 3, 1),
    ]


def test_schedulers_are_added_and_are_idle_while_all_of_them_are():
    one, other = (
        SchedulerStatistics(
            num_waiting=1, num_running=2, counters={"steps": 3, name: 1}, idle_seconds=seconds
        )
        for name, seconds in (("moved", 5.0), ("ended", 0.0))
    )
    both = added_schedulers([one, other])
    assert (both.num_waiting, both.num_running, both.idle_seconds) == (2, 4, 0.0)
    assert both.counters == {"steps": 6, "moved": 1, "ended": 1}


def test_one_alone_is_told_as_it_is():
    alone = pool(3, "host")
    assert added_pools([alone]) is alone
