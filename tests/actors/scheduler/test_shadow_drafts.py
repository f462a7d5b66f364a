"""Guesses are judged once, when the tokens that they guess are known."""

from __future__ import annotations

from pageant.actors.scheduler.shadow_drafts import ShadowDrafts
from pageant.protocol.arrays import int32


def settled(trials: ShadowDrafts, rows: list[int], num_tokens: list[int]) -> list[tuple[int, int, int]]:
    columns = trials.take_known(int32(rows), int32(num_tokens))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_guess_is_judged_when_its_token_is_known_and_once():
    trials = ShadowDrafts(4)
    assert not trials
    trials.record(2, position=10, token_id=7)
    trials.record(3, position=5, token_id=8)
    assert trials
    assert settled(trials, [1, 2, 3], [50, 10, 5]) == []
    assert settled(trials, [1, 2], [51, 11]) == [(2, 10, 7)]
    assert settled(trials, [2, 3], [12, 9]) == [(3, 5, 8)]
    assert not trials


def test_a_rows_next_owner_has_no_guess():
    trials = ShadowDrafts(4)
    trials.record(2, position=10, token_id=7)
    trials.forget(2)
    assert settled(trials, [2], [11]) == []
