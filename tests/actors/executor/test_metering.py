from types import SimpleNamespace

import numpy as np

from pageant.actors.executor.metering import Metering


def test_steps_that_overlap_on_a_device_keep_it_busy_once():
    metering = Metering()
    plan = SimpleNamespace(num_tokens=np.array([3, 1]), rows=np.array([0, 1]))
    metering.stepped(plan, began=1.0, ended=3.0)
    metering.stepped(plan, began=2.0, ended=4.0)
    metering.stepped(plan, began=6.0, ended=7.0)
    counts = metering.statistics(device="cpu", dtype="x", num_blocks=1, block_size=2, memory_bytes={})
    assert counts.busy_seconds == 4.0
    assert (counts.steps, counts.rows, counts.tokens) == (3, 6, 12)
    assert counts.histograms["step_seconds"].sum == 5.0
    assert sum(counts.histograms["iteration_tokens_total"].counts) == 3


def test_a_plan_of_several_steps_counts_as_these():
    metering = Metering()
    plan = SimpleNamespace(num_tokens=np.array([1, 1]), rows=np.array([0, 1]))
    metering.stepped(plan, began=1.0, ended=3.0, num_steps=4)
    metering.stepped(plan, began=3.0, ended=3.0, num_steps=0)
    counts = metering.statistics(device="cpu", dtype="x", num_blocks=1, block_size=2, memory_bytes={})
    assert (counts.steps, counts.rows, counts.tokens, counts.busy_seconds) == (4, 8, 8, 2.0)
    assert counts.histograms["step_seconds"].sum == 2.0
    assert sum(counts.histograms["iteration_tokens_total"].counts) == 4
