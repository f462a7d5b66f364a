"""Shares of what one executor does, from measurements that are given."""

from __future__ import annotations

from pageant.scripts.bench.groups import summary


def test_each_layout_is_compared_with_the_one_alone_of_the_same_round():
    found = {"alone": [[10.0, 100.0], [20.0, 100.0]], "tensor 2": [[9.0, 50.0], [18.0, 100.0]]}
    assert summary(found) == {
        "alone": {"tokens_per_second": [15.0, 100.0], "of_alone": [1.0, 1.0]},
        "tensor 2": {"tokens_per_second": [13.5, 75.0], "of_alone": [0.9, 0.75]},
    }
