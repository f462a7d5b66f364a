"""Comparison of the log-probabilities of two runs, whose sums may differ in their last bits.

A request's rows are computed with other rows beside them each time, and a product may then add up in another order.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pageant.actors.frontend.outputs import TokenLogprobs

Places = Sequence[TokenLogprobs | None] | None


def assert_close_logprobs(found: Places, right: Places, tolerance: float = 1e-5) -> None:
    """Assert that two runs' places have the same tokens, and log-probabilities that differ by at most `tolerance`.

    Neighbours in the order of a place may have changed sides: ranks may differ by one.
    """
    assert (found is None) == (right is None)
    for one, other in zip(found or (), right or (), strict=True):
        assert (one is None) == (other is None)
        entries, expected = one or {}, other or {}
        assert next(iter(entries), None) == next(iter(expected), None), "the token that is there"
        assert {token: (entry.decoded_token, entry.token_bytes) for token, entry in entries.items()} == {
            token: (entry.decoded_token, entry.token_bytes) for token, entry in expected.items()
        }
        assert {token: entry.logprob for token, entry in entries.items()} == pytest.approx(
            {token: entry.logprob for token, entry in expected.items()}, rel=0, abs=tolerance
        )
        for token, entry in entries.items():
            rank, other_rank = entry.rank, expected[token].rank
            assert (rank is None) == (other_rank is None)
            assert rank is None or other_rank is None or abs(rank - other_rank) <= 1
