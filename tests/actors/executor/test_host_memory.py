"""Blocks go to the host's memory and come back bit by bit as they were."""

import pytest
import torch

from pageant.actors.executor import host_memory
from pageant.actors.executor.host_memory import HostMemory
from pageant.actors.executor.moving import Move
from pageant.protocol.arrays import int32


def caches(dtype, shape=(6, 2, 4, 8), layers=3):
    torch.manual_seed(1)
    return [tuple(torch.randn(shape).to(dtype) for _ in "kv") for _ in range(layers)]


def move(saves=(), restores=()):
    blocks, slots = [pair[0] for pair in saves], [pair[1] for pair in saves]
    sources, destinations = [pair[0] for pair in restores], [pair[1] for pair in restores]
    return Move(int32(blocks), int32(slots), int32(sources), int32(destinations))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("shape", [(6, 2, 4, 8), (6, 1, 3, 5)])
def test_what_is_saved_is_restored_in_every_layer_and_nothing_else_changes(dtype, shape, monkeypatch):
    pairs = caches(dtype, shape)
    memory = HostMemory(pairs)
    assert memory.block_bytes == sum(cache[0].nbytes for pair in pairs for cache in pair)
    monkeypatch.setattr(memory, "_per_chunk", 2)
    before = [[cache.clone() for cache in pair] for pair in pairs]
    memory.move(move(saves=[(1, 7), (4, 0)]))
    for pair in pairs:
        for cache in pair:
            cache[1], cache[4] = 0, 0
    memory.move(move(restores=[(7, 4), (0, 5)]))
    for pair, old in zip(pairs, before, strict=True):
        for cache, was in zip(pair, old, strict=True):
            assert cache[4].equal(was[1]) and cache[5].equal(was[4])
            assert cache[[0, 2, 3]].equal(was[[0, 2, 3]])


def test_saves_come_before_restores_and_a_slots_last_save_counts():
    ((keys, values),) = caches(torch.float32, layers=1)
    memory = HostMemory([(keys, values)])
    second = keys[2].clone()
    memory.move(move(saves=[(1, 3), (2, 3)], restores=[(3, 0)]))
    assert keys[0].equal(second)


def test_memory_is_taken_as_it_is_used(monkeypatch):
    monkeypatch.setattr(host_memory, "CHUNK_BYTES", 4096)
    memory = HostMemory(caches(torch.float32))
    assert not memory._chunks
    memory.move(move(saves=[(0, 1_000_000)]))
    assert len(memory._chunks) == 1
