"""Blocks go to the host's memory and come back bit by bit as they were."""

import pytest
import torch

from pageant.actors.executor.tiers import host_memory
from pageant.actors.executor.tiers.host_memory import HostMemory
from pageant.actors.executor.tiers.moving import Move, Way
from pageant.actors.runtime.disk_file import DiskFile
from pageant.protocol.arrays import int32
from pageant.protocol.tiers import DISK


def caches(dtype, shape=(6, 2, 4, 8), layers=3):
    torch.manual_seed(1)
    return [tuple(torch.randn(shape).to(dtype) for _ in "kv") for _ in range(layers)]


def move(way, *pairs):
    return Move(way, int32([source for source, _ in pairs]), int32([to for _, to in pairs]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("shape", [(6, 2, 4, 8), (6, 1, 3, 5)])
def test_what_is_saved_is_restored_in_every_layer_and_nothing_else_changes(dtype, shape, monkeypatch):
    pairs = caches(dtype, shape)
    memory = HostMemory(pairs)
    assert memory.block_bytes == sum(cache[0].nbytes for pair in pairs for cache in pair)
    monkeypatch.setattr(memory, "_per_chunk", 2)
    before = [[cache.clone() for cache in pair] for pair in pairs]
    memory.move(move(Way.SAVE, (1, 7), (4, 0)))
    for pair in pairs:
        for cache in pair:
            cache[1], cache[4] = 0, 0
    memory.move(move(Way.RESTORE, (7, 4), (0, 5)))
    for pair, old in zip(pairs, before, strict=True):
        for cache, was in zip(pair, old, strict=True):
            assert cache[4].equal(was[1]) and cache[5].equal(was[4])
            assert cache[[0, 2, 3]].equal(was[[0, 2, 3]])


def test_a_slots_last_save_counts():
    ((keys, values),) = caches(torch.float32, layers=1)
    memory = HostMemory([(keys, values)])
    second = keys[2].clone()
    memory.move(move(Way.SAVE, (1, 3), (2, 3)))
    memory.move(move(Way.RESTORE, (3, 0)))
    assert keys[0].equal(second)


def test_memory_is_taken_as_it_is_used(monkeypatch):
    monkeypatch.setattr(host_memory, "CHUNK_BYTES", 4096)
    memory = HostMemory(caches(torch.float32))
    assert not memory._chunks
    memory.move(move(Way.SAVE, (0, 1_000_000)))
    assert len(memory._chunks) == 1


@pytest.mark.parametrize("count", [3, host_memory.GATHERED_MAX + 5])
def test_what_is_written_to_the_disk_is_read_from_there(tmp_path, count):
    pairs = caches(torch.bfloat16, shape=(count, 2, 4, 8))
    memory = HostMemory(pairs, DiskFile(str(tmp_path)))
    before = [[cache.clone() for cache in pair] for pair in pairs]
    memory.move(move(Way.SAVE, *((block, block) for block in range(count))))
    memory.move(move(Way.WRITE, *((slot, DISK + 2 * slot) for slot in range(count))))
    for pair in pairs:
        for cache in pair:
            cache.zero_()
    memory.move(move(Way.READ, *((DISK + 2 * slot, count - 1 - slot) for slot in range(count))))
    for pair, old in zip(pairs, before, strict=True):
        for cache, was in zip(pair, old, strict=True):
            assert cache.equal(was.flip(0))
    assert list(tmp_path.iterdir()) == [], "the file has no name, and is gone with its executor"


def test_a_disk_path_where_nothing_can_be_written_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"disk_path is '.*/none', which is no folder"):
        DiskFile(str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"disk_path is '/proc', where no file can be made"):
        DiskFile("/proc")


def test_what_was_never_written_is_not_read(tmp_path):
    memory = HostMemory(caches(torch.float32), DiskFile(str(tmp_path)))
    with pytest.raises(AssertionError, match="read before it was written"):
        memory.move(move(Way.READ, (DISK, 0)))


def test_a_full_disk_is_an_error(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    memory = HostMemory(caches(torch.float32), DiskFile(str(tmp_path)))
    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        memory.move(move(Way.WRITE, (0, DISK)))
