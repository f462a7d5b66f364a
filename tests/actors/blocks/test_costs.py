"""Costs decide whether a block is moved or computed again."""

import pytest

from pageant.actors.blocks.costs import Move, MoveCosts
from pageant.protocol.tiers import Moved


def test_while_nothing_is_known_moving_pays():
    costs = MoveCosts()
    assert costs.move_pays(16, Move.HOST)
    costs.moved(Move.HOST, Moved(blocks=4, seconds=1.0))
    assert costs.move_pays(16, Move.HOST), "what a token costs is not known"


@pytest.mark.parametrize("fixed", [0.0, 0.02])
def test_a_token_costs_what_one_more_in_a_step_adds(fixed):
    costs = MoveCosts()
    for tokens in (1, 8, 64, 512, 8, 1):
        costs.stepped(tokens, fixed + 0.001 * tokens)
    assert costs.seconds_per_token == pytest.approx(0.001)


def test_while_all_steps_are_alike_a_token_costs_its_share():
    costs = MoveCosts()
    for _ in range(10):
        costs.stepped(4, 0.02)
    assert costs.seconds_per_token == pytest.approx(0.005)


def test_noise_that_would_make_tokens_cost_less_than_nothing_is_not_believed():
    costs = MoveCosts()
    costs.stepped(1, 0.03)
    costs.stepped(100, 0.02)
    assert costs.seconds_per_token > 0


def test_the_cheaper_way_is_taken():
    costs = MoveCosts()
    costs.stepped(1, 0.011)
    costs.stepped(100, 0.11)  # a millisecond each
    costs.moved(Move.HOST, Moved(blocks=10, seconds=0.05))  # five each
    assert costs.move_pays(16, Move.HOST)
    assert not costs.move_pays(4, Move.HOST)
    assert not costs.move_pays(16, *4 * [Move.HOST]), "there and back, twice"


def test_what_was_measured_long_ago_fades():
    costs = MoveCosts()
    costs.moved(Move.HOST, Moved(blocks=1, seconds=100.0))
    for _ in range(1000):
        costs.moved(Move.HOST, Moved(blocks=1, seconds=0.001))
    assert costs.seconds_per_move(Move.HOST) < 0.1


def test_every_way_has_its_own_price():
    costs = MoveCosts()
    costs.stepped(10, 0.01)
    costs.moved(Move.HOST, Moved(blocks=1, seconds=0.001))
    costs.moved(Move.READ, Moved(blocks=1, seconds=0.1))
    costs.moved(Move.WRITE, Moved())
    assert costs.move_pays(16, Move.HOST, Move.WRITE)
    assert not costs.move_pays(16, Move.READ)


def test_what_was_slow_once_is_tried_again_some_day():
    costs = MoveCosts()
    costs.moved(Move.READ, Moved(blocks=1, seconds=0.1))
    costs.stepped(1, 0.001)
    assert not costs.move_pays(16, Move.READ)
    for _ in range(2500):
        costs.stepped(1, 0.001)
    assert costs.move_pays(16, Move.READ)
