"""Runners of a group in stages, in threads, beside one runner alone."""

from __future__ import annotations

from functools import partial

import pytest

from pageant.actors.executor.groups.staged_runners import StagedFollower, StagedLeader
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.runner import TorchRunner
from pageant.kernels.collectives.group_operations import GroupOperations
from pageant.kernels.collectives.local import local_group
from pageant.models.sharding import Shard
from pageant.models.stages import Stage
from tests.actors.executor.groups.threaded_group import ThreadedGroup


def pipeline(demo, options, ranks, refusals):
    """A group of `ranks` in each of two stages."""
    everyone = local_group(2 * ranks)
    stages = [*local_group(ranks), *local_group(ranks)]

    def make(rank):
        shard = Shard(rank % ranks, ranks, stage=Stage(1 - rank // ranks, 2))
        runner = StagedFollower if rank else StagedLeader
        operations = GroupOperations(everyone[rank], stages[rank])
        return runner(RunnerConfig(model=demo, shard=shard, **options), operations=operations)

    return ThreadedGroup([partial(make, rank) for rank in range(2 * ranks)], refusals)


@pytest.mark.parametrize("ranks", [1, 2])
def test_stages_draw_what_one_runner_draws_though_launches_are_refused(generate, demo, options, ranks):
    """The stages before have computed a refused launch in vain, and compute it again."""
    group = pipeline(demo, options, ranks, refusals=3)
    found = generate(group, 8, temperature=1.0)
    group.close()
    assert found == generate(TorchRunner(RunnerConfig(model=demo, **options)), 8, temperature=1.0)
    assert group.number > 9, "some were refused"
