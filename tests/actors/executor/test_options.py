"""Options of an executor: cores of a CPU, the threads that compute there, and what is refused."""

from __future__ import annotations

import os
import threading
from typing import Any

import msgspec
import pytest

from pageant.actors.executor.options import ExecutorOptions, make_runner
from pageant.actors.executor.runners.config import RunnerConfig


def test_cores_of_a_device_say_how_many_threads_compute():
    options = ExecutorOptions(model="x", device="cpu:0-1")
    assert (options.torch_device, options.cores, options.num_threads) == ("cpu", (0, 1), 2)
    assert ExecutorOptions(model="x", device="cpu:0-1", threads=1).num_threads == 1
    assert ExecutorOptions(model="x").num_threads is None
    assert ExecutorOptions(model="x", device="cuda:1").torch_device == "cuda:1"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "cpu:x"}, "device is 'cpu:x'; expected cpu, cpu:0-3, cuda or cuda:N"),
        ({"device": "free"}, "device is 'free'; expected cpu, cpu:0-3, cuda or cuda:N"),
        ({"device": "cpu:3-1"}, "has the range 3-1; expected 1-3"),
        ({"device": "cpu:0,0-1"}, "names core 0 twice"),
        ({"device": "cpu:0-1", "threads": 3}, "threads is 3, with device 'cpu:0-1'; expected at most 2"),
    ],
)
def test_what_no_executor_can_do_is_refused_by_name(options, text):
    with pytest.raises(ValueError, match=text):
        ExecutorOptions(model="x", **options)


class Noted:
    """Stands for a runner: notes where it was made, and with what."""

    def __init__(self, config: RunnerConfig, **_: Any) -> None:
        self.cores = os.sched_getaffinity(0)
        self.config = config
        found: list[set[int]] = []
        thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        self.cores_of_threads = found[0]


def made(monkeypatch: pytest.MonkeyPatch, device: str) -> Any:
    """Return what `make_runner` makes in a thread of its own, whose cores end with it."""
    monkeypatch.setattr("pageant.actors.executor.runners.runner.TorchRunner", Noted)
    found: list[Any] = []

    def make() -> None:
        try:
            found.append(make_runner(ExecutorOptions(model="x", device=device)))
        except ValueError as error:
            found.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return found[0]


def test_a_runner_and_the_threads_that_it_starts_compute_on_the_cores_of_its_device(monkeypatch):
    before = os.sched_getaffinity(0)
    core = max(before)
    runner = made(monkeypatch, f"cpu:{core}")
    assert runner.cores == runner.cores_of_threads == {core}
    assert runner.config.device == "cpu"
    assert runner.config.threads == 1
    assert os.sched_getaffinity(0) == before
    assert made(monkeypatch, "cpu").cores == before


def test_cores_that_are_not_there_are_named(monkeypatch):
    failure = made(monkeypatch, "cpu:4000")
    assert "'cpu:4000' names core 4000; this process may use" in str(failure)


def test_options_are_decoded_as_they_are_written():
    written = msgspec.json.encode(ExecutorOptions(model="x", device="cpu:0,2-3"))
    assert msgspec.json.decode(written, type=ExecutorOptions).cores == (0, 2, 3)


@pytest.mark.parametrize(
    ("ranks", "segments", "text"),
    [
        (1, 3, "tensor_segments is 3; expected 1, one for each of tensor_parallel, or a power of two"),
        (2, 3, "tensor_segments is 3; expected 2,"),
        (4, 2, "tensor_segments is 2; expected 4,"),
        (2, 128, "tensor_segments is 128; expected at most 64"),
    ],
)
def test_segments_are_as_many_as_ranks_or_a_power_of_two(ranks, segments, text):
    with pytest.raises(ValueError, match=text):
        ExecutorOptions(model="x", tensor_parallel=ranks, tensor_segments=segments)
    for fitting in (ranks, 8):
        ExecutorOptions(model="x", tensor_parallel=ranks, tensor_segments=fitting)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pipeline_parallel": 0}, "pipeline_parallel is 0; expected 1 to 64"),
        (
            {"tensor_parallel": 32, "pipeline_parallel": 3},
            "pipeline_parallel is 3, of 32 executors each; expected at most 64 executors together",
        ),
        (
            {"pipeline_parallel": 2, "pipeline_layers": (5,)},
            r"pipeline_layers is \[5\]; expected 2 numbers of at least 1, one for each of pipeline_parallel",
        ),
        ({"pipeline_layers": ()}, r"pipeline_layers is \[\]; expected 1 numbers"),
        ({"pipeline_parallel": 2, "pipeline_layers": (0, 5)}, "expected 2 numbers of at least 1"),
        (
            {"pipeline_parallel": 2, "device": "cuda"},
            "device is 'cuda'; expected cpu with pipeline_parallel 2",
        ),
    ],
)
def test_stages_that_cannot_be_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        ExecutorOptions(model="x", **options)


def test_members_are_numbered_from_the_last_stage_back():
    options = ExecutorOptions(model="x", tensor_parallel=2, pipeline_parallel=3)
    assert [options.shape.stage_of(rank) for rank in range(options.num_members)] == [2, 2, 1, 1, 0, 0]
    assert options.members_because == "tensor_parallel: 2 x pipeline_parallel: 3"
    shards = [options.shard(rank) for rank in (0, 3)]
    assert [(shard.rank, shard.stage.number) for shard in shards if shard] == [(0, 2), (1, 1)]
    assert ExecutorOptions(model="x").shard(0) is None
