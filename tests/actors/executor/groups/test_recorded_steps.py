"""Recorded steps of a group by shared memory: each member replays its part, and they meet in the sums as ever."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from pageant.actors.executor.groups.following_runner import FollowingRunner
from pageant.actors.executor.groups.leading_runner import LeadingRunner
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.runner import TorchRunner
from pageant.kernels.collectives.base import GroupBroken
from pageant.kernels.collectives.group_operations import GroupOperations
from pageant.models.sharding import Shard
from tests.actors.executor.groups.threaded_group import ThreadedGroup
from tests.kernels.collectives.groups import shared_memory

RANKS = 2


@pytest.fixture
def group(demo, options):
    with shared_memory(RANKS) as ranks:

        def make(rank):
            config = RunnerConfig(model=demo, shard=Shard(rank, RANKS), **options | {"backend": "cpu"})
            runner = FollowingRunner if rank else LeadingRunner
            return runner(config, operations=GroupOperations(ranks[rank]))

        group = ThreadedGroup([partial(make, rank) for rank in range(RANKS)], refusals=3)
        yield group
        group.close()


def recorded(runner):
    """Return how many shapes of steps a runner has recorded."""
    return runner._passes._programs.num_recorded


def test_a_group_that_replays_its_steps_draws_what_one_runner_draws(generate, demo, options, group):
    expected = generate(TorchRunner(RunnerConfig(model=demo, **options)), 8, temperature=1.0)
    assert generate(group, 8, temperature=1.0) == expected
    assert [recorded(group.leader), *map(recorded, group.followers)] == [1, 1], "the decodes"


def test_a_replay_whose_group_breaks_raises(generate, group, monkeypatch, caplog):
    """Replayed calls cannot raise. What they met is raised after them, before anything is drawn."""
    generate(group, 4)
    assert recorded(group.leader) == 1
    (follower,) = group.followers
    monkeypatch.setattr(follower, "_compute", lambda *step: follower._operations.stage.abort("it has died"))
    with caplog.at_level(logging.CRITICAL), pytest.raises(GroupBroken, match="it has died"):
        generate(group, 4)
