"""Writing and copying in the paged cache."""

from __future__ import annotations

import torch

from pageant.kernels.base import Kernels


def test_keys_and_values_go_to_their_slots_and_nowhere_else(backend: Kernels) -> None:
    keys, values = torch.zeros(5, 3, 4, 2), torch.zeros(5, 3, 4, 2)
    fused = torch.randn(3, 12)
    key, value = fused[:, :6].view(3, 3, 2), fused[:, 6:].view(3, 3, 2)
    slots = torch.tensor([17, 2, 3])
    backend.write_kv(key, value, keys, values, slots)
    expected_keys, expected_values = torch.zeros_like(keys), torch.zeros_like(values)
    for token, slot in enumerate(slots.tolist()):
        expected_keys[slot // 4, :, slot % 4] = key[token]
        expected_values[slot // 4, :, slot % 4] = value[token]
    assert torch.equal(keys, expected_keys) and torch.equal(values, expected_values)


def test_writing_no_tokens_changes_nothing(backend: Kernels) -> None:
    keys, values = torch.ones(2, 1, 4, 2), torch.ones(2, 1, 4, 2)
    backend.write_kv(torch.empty(0, 1, 2), torch.empty(0, 1, 2), keys, values, torch.empty(0).long())
    assert bool((keys == 1).all()) and bool((values == 1).all())


def test_blocks_move_in_every_layer_reads_before_writes(backend: Kernels) -> None:
    caches = [(torch.randn(6, 2, 4, 3), torch.randn(6, 2, 4, 3)) for _ in range(2)]
    before = [(keys.clone(), values.clone()) for keys, values in caches]
    backend.move_kv(caches, torch.tensor([0, 1, 5]), torch.tensor([1, 0, 2]))
    for moved, old in zip(caches, before, strict=True):
        for after, was in zip(moved, old, strict=True):
            assert torch.equal(after, was[[1, 0, 5, 3, 4, 5]])


def test_tokens_move_in_every_layer_reads_before_writes(backend: Kernels) -> None:
    caches = [(torch.randn(3, 2, 4, 3), torch.randn(3, 2, 4, 3)) for _ in range(2)]
    before = [(keys.clone(), values.clone()) for keys, values in caches]
    sources, destinations = torch.tensor([5, 6, 11]), torch.tensor([4, 5, 0])
    backend.move_slots(caches, sources, destinations)
    for moved, old in zip(caches, before, strict=True):
        for after, was in zip(moved, old, strict=True):
            expected = was.clone()
            for source, destination in zip(sources.tolist(), destinations.tolist(), strict=True):
                expected[destination // 4, :, destination % 4] = was[source // 4, :, source % 4]
            assert torch.equal(after, expected)


def test_caches_without_columns_are_passed_over(backend: Kernels) -> None:
    """Values that are parts of keys have none."""
    keys, values = torch.randn(6, 1, 4, 3), torch.empty(6, 1, 4, 0)
    before = keys.clone()
    backend.move_kv([(keys, values)], torch.tensor([0, 5]), torch.tensor([1, 2]))
    assert torch.equal(keys, before[[0, 0, 5, 3, 4, 5]])
    backend.move_slots([(keys, values)], torch.tensor([13]), torch.tensor([3]))
    assert torch.equal(keys[0, 0, 3], before[3, 0, 1])
