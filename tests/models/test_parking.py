"""Tensors give back their memory, and have what they held when they get it again."""

from __future__ import annotations

import torch

from pageant.models.parking import Parked


def test_tensors_and_their_views_are_as_they_were():
    whole = torch.randn(8, 16)
    part, turned, other = whole[2:5], whole.T, torch.arange(10, dtype=torch.bfloat16)
    empty = torch.empty(0)
    right = [one.clone() for one in (whole, part, turned, other)]
    parked = Parked([whole, part, turned, other, empty])
    assert whole.untyped_storage().nbytes() == other.untyped_storage().nbytes() == 0
    assert parked.num_bytes == 8 * 16 * 4 + 10 * 2, "what is shared is kept once"
    parked.restore()
    assert parked.num_bytes == 0
    for found, expected in zip((whole, part, turned, other), right, strict=True):
        assert torch.equal(found, expected)
    whole[2, 0] = 5.0
    assert part[0, 0] == turned[0, 2] == 5.0, "they share memory as before"
