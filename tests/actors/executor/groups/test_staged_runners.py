"""Runners of a group in stages, in threads, beside one runner alone."""

from __future__ import annotations

import queue
import threading

import pytest

from pageant.actors.executor.groups.orders import order_of
from pageant.actors.executor.groups.staged_runners import StagedFollower, StagedLeader
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.runner import TorchRunner
from pageant.actors.executor.work import Work
from pageant.kernels.collectives.group_operations import GroupOperations
from pageant.kernels.collectives.local import local_group
from pageant.models.sharding import Shard
from pageant.models.stages import Stage
from tests.kernels.collectives.groups import in_threads


class Pipeline:
    """A group of `ranks` in each of two stages, as its leader's executor sees it: a runner.

    Args:
        refusals: every so many launches, the leader refuses one, and hands the same step over again.
    """

    def __init__(self, demo, options, ranks, refusals):
        everyone = local_group(2 * ranks)
        stages = [*local_group(ranks), *local_group(ranks)]

        def make(rank):
            config = RunnerConfig(
                model=demo, shard=Shard(rank % ranks, ranks, stage=Stage(1 - rank // ranks, 2)), **options
            )
            runner = StagedFollower if rank else StagedLeader
            return runner(config, operations=GroupOperations(everyone[rank], stages[rank]))

        self.leader, *followers = in_threads([lambda rank=rank: make(rank) for rank in range(2 * ranks)])
        self.orders = [queue.SimpleQueue() for _ in followers]
        self.refusals, self.number = refusals, 0
        for orders, follower in zip(self.orders, followers, strict=True):
            threading.Thread(target=self._follow, args=(orders, follower), daemon=True).start()

    def _follow(self, orders, follower):
        while (order := orders.get()) is not None:
            follower.follow(order)

    def _begin(self, inputs):
        self.number += 1
        work = Work(self.number, 1, self.number, False, (inputs,), None)
        order = order_of(work, self.leader.ordered(work))
        for orders in self.orders:
            orders.put(order)
        self.leader.begin(work)

    def launch(self, inputs):
        """Compute a step, after it was refused once or not."""
        if self.number % self.refusals == 0:
            self._begin(inputs)
            self.leader.finish()
        self._begin(inputs)
        drawn = self.leader.launch(inputs)
        self.leader.finish()
        return drawn

    def close(self):
        """End the followers' threads."""
        for orders in self.orders:
            orders.put(None)


@pytest.mark.parametrize("ranks", [1, 2])
def test_stages_draw_what_one_runner_draws_though_launches_are_refused(generate, demo, options, ranks):
    """The stages before have computed a refused launch in vain, and compute it again."""
    pipeline = Pipeline(demo, options, ranks, refusals=3)
    found = generate(pipeline, 8, temperature=1.0)
    pipeline.close()
    assert found == generate(TorchRunner(RunnerConfig(model=demo, **options)), 8, temperature=1.0)
    assert pipeline.number > 9, "some were refused"
