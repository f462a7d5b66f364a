"""Philox against the published vectors, and against itself written with Python's integers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from pageant.kernels.philox import philox4x32

Philox = Callable[[list[int], list[int]], list[int]]

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def torch_philox(counter: list[int], key: list[int]) -> list[int]:
    a, b, c, d = (torch.tensor([word]) for word in counter)
    low, high = (torch.tensor([word]) for word in key)
    return [int(word) for word in philox4x32((a, b, c, d), (low, high))]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_the_published_vectors_come_out(scalar_philox: Philox, counter: str, key: str, result: str) -> None:
    assert scalar_philox(words(counter), words(key)) == words(result)
    assert torch_philox(words(counter), words(key)) == words(result)


def test_random_counters_agree_with_the_scalar_form(scalar_philox: Philox) -> None:
    generator = random.Random(8)
    for _ in range(200):
        counter = [generator.getrandbits(32) for _ in range(4)]
        key = [generator.getrandbits(32) for _ in range(2)]
        assert torch_philox(counter, key) == scalar_philox(counter, key)


def test_counters_and_keys_broadcast_and_are_left_alone(scalar_philox: Philox) -> None:
    counters, key = torch.arange(6)[None], torch.tensor([[3], [4]])
    zero = torch.zeros(1, 1, dtype=torch.int64)
    results = philox4x32((counters, zero, zero, zero), (key, zero))
    assert torch.equal(counters, torch.arange(6)[None]) and not zero.any()
    assert all(word.shape == (2, 6) for word in results)
    assert [int(word[1, 5]) for word in results] == scalar_philox([5, 0, 0, 0], [4, 0])
