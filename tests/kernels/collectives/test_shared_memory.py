"""Processes that share memory: how they join, how they die, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pageant.kernels.collectives.base import GroupBroken, GroupMisuse
from pageant.kernels.collectives.segment import Segment, SegmentAddress
from pageant.kernels.collectives.shared_memory import SharedMemory
from pageant.kernels.cpu import CpuKernels
from tests.kernels.collectives.groups import in_threads, shared_memory

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def processes(segment: Segment, ranks: list[int], deadline: float) -> Iterator[list[subprocess.Popen[str]]]:
    """Give processes that join as these ranks; kill what is left of them."""
    command = [sys.executable, "-m", "tests.kernels.collectives.a_rank", segment.address]
    started = [
        subprocess.Popen([*command, str(rank), str(deadline)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for rank in ranks
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def sum_until_it_fails(rank: SharedMemory) -> GroupBroken:
    parts, out = torch.ones(1, 16, 64), torch.empty(16, 64)
    while True:
        try:
            rank.all_reduce(parts, out)
        except GroupBroken as error:
            return error


@pytest.mark.parametrize(
    ("by", "deadline", "says"),
    [(signal.SIGKILL, 60, "has ended"), (signal.SIGSTOP, 1.0, "within 1 s")],
    ids=["killed", "stopped"],
)
def test_others_go_on_with_an_error_that_names_a_rank_which_died_or_hangs(by, deadline, says):
    with Segment(3) as segment, processes(segment, [1, 2], deadline) as (first, second):
        rank = SharedMemory(segment.address, 0, deadline)
        assert first.stdout is not None
        assert second.stdout is not None
        (failure,) = in_threads([lambda: sum_until_told(rank, first, by)])
        assert isinstance(failure, GroupBroken)
        assert failure.rank == 1
        assert says in str(failure)
        # The third rank learns it too, and ends by itself.
        told, _ = second.communicate(timeout=120)
        assert told.splitlines()[-1].startswith("1: ")
        rank.close()


def sum_until_told(rank: SharedMemory, victim: subprocess.Popen[str], by: signal.Signals) -> GroupBroken:
    parts, out = torch.ones(1, 16, 64), torch.empty(16, 64)
    for _ in range(20):
        rank.all_reduce(parts, out)
    victim.send_signal(by)
    return sum_until_it_fails(rank)


def test_nothing_is_left_behind():
    before = set(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm")), threading.active_count()
    with shared_memory(3) as ranks:
        in_threads([rank.barrier for rank in ranks])
        assert "pageant-group" in Path("/proc/self/maps").read_text()
        ranks[0].close()
    assert (set(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm")), threading.active_count()) == before
    assert "pageant-group" not in Path("/proc/self/maps").read_text()


def test_memory_goes_only_when_the_operation_that_a_thread_is_in_has_ended():
    with shared_memory(2) as (first, _):
        threading.Timer(0.2, first.close).start()
        (failure,) = in_threads([first.barrier])
        assert isinstance(failure, GroupBroken)
        with pytest.raises(GroupBroken, match="left the group"):
            first.check()


def test_a_rank_can_be_joined_once():
    with Segment(2) as segment:
        threading.Thread(target=lambda: suppressed(segment.address, 0), daemon=True).start()
        (failure,) = in_threads([lambda: join_second(segment.address)])
        assert isinstance(failure, GroupMisuse)
        assert "joined already" in str(failure)


def suppressed(address: str, rank: int) -> None:
    with contextlib.suppress(GroupBroken, GroupMisuse):
        SharedMemory(address, rank, 5.0)


def join_second(address: str) -> None:
    SharedMemory(address, 1, 5.0)
    SharedMemory(address, 1, 5.0)


def test_an_address_of_nobody_is_refused():
    with Segment(2) as segment:
        address = segment.address
    with pytest.raises(GroupMisuse, match="on this host"):
        SharedMemory(address, 0, 1.0)
    with pytest.raises(GroupMisuse, match="expected memfd"):
        SharedMemory("tcp://127.0.0.1:1", 0, 1.0)


def test_memory_of_another_group_is_refused():
    with Segment(2) as segment:
        found = SegmentAddress.parse(segment.address)
        other = SegmentAddress(found.process, found.file, found.nonce ^ 1, found.size)
        with pytest.raises(GroupMisuse, match="another group"):
            SharedMemory(str(other), 0, 1.0)


@pytest.mark.parametrize(
    "arguments",
    [{"size": 0}, {"size": 65}, {"size": 2, "slot_bytes": 5000}, {"size": 2, "edge_bytes": 1}],
    ids=str,
)
def test_a_segment_of_a_wrong_size_is_refused(arguments):
    with pytest.raises(GroupMisuse, match="expected"):
        Segment(**arguments)


def test_ranks_that_do_not_come_are_named():
    with Segment(2) as segment, pytest.raises(GroupBroken, match=r"rank 1 did not come within 0\.3 s"):
        SharedMemory(segment.address, 0, join_seconds=0.3)


def test_sums_are_replayed_with_recorded_steps():
    with shared_memory(2) as ranks:
        weights = [torch.randn(32, 32) for _ in ranks]
        x = torch.randn(3, 32)
        outs = [torch.zeros(3, 32) for _ in ranks]

        def record(rank: SharedMemory) -> list[torch.Tensor]:
            kernels = CpuKernels()
            mine = weights[rank.rank]

            def step() -> torch.Tensor:
                rank.all_reduce(kernels.linear(x, mine)[None], outs[rank.rank])
                return outs[rank.rank]

            replay = kernels.capture(step)
            x.fill_(2)
            rank.barrier()
            return [replay().clone() for _ in range(3)]

        expected = sum(torch.full((3, 32), 2.0) @ weight.T for weight in weights)
        for found in in_threads([lambda rank=rank: record(rank) for rank in ranks]):
            assert isinstance(found, list)
            for one in found:
                torch.testing.assert_close(one, expected)


def test_a_replay_in_a_broken_group_ends_and_can_be_told():
    with shared_memory(2) as (first, second):
        kernels = CpuKernels()
        parts, out = torch.ones(1, 1, 32), torch.zeros(1, 32)

        def step() -> torch.Tensor:
            first.all_reduce(parts, out)
            return out

        recorded: list[object] = in_threads(
            [
                lambda: kernels.capture(step),
                lambda: second.all_reduce(torch.zeros(1, 1, 32), torch.zeros(1, 32)),
            ]
        )
        replay = recorded[0]
        assert callable(replay)
        second.close()
        in_threads([replay])
        with pytest.raises(GroupBroken, match="rank 1 has left"):
            first.check()
