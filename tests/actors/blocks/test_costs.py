"""Whether a block is moved or computed again."""

import pytest

from pageant.actors.blocks.costs import Costs


def test_while_nothing_is_known_moving_pays():
    costs = Costs()
    assert costs.move_pays(16)
    costs.moved(4, 1.0)
    assert costs.move_pays(16), "what a token costs is not known"


@pytest.mark.parametrize("fixed", [0.0, 0.02])
def test_a_token_costs_what_one_more_in_a_step_adds(fixed):
    costs = Costs()
    for tokens in (1, 8, 64, 512, 8, 1):
        costs.stepped(tokens, fixed + 0.001 * tokens)
    assert costs.seconds_per_token == pytest.approx(0.001)


def test_while_all_steps_are_alike_a_token_costs_its_share():
    costs = Costs()
    for _ in range(10):
        costs.stepped(4, 0.02)
    assert costs.seconds_per_token == pytest.approx(0.005)


def test_noise_that_would_make_tokens_cost_less_than_nothing_is_not_believed():
    costs = Costs()
    costs.stepped(1, 0.03)
    costs.stepped(100, 0.02)
    assert costs.seconds_per_token > 0


def test_the_cheaper_way_is_taken():
    costs = Costs()
    costs.stepped(1, 0.011)
    costs.stepped(100, 0.11)  # a millisecond each
    costs.moved(10, 0.05)  # five each
    assert costs.move_pays(16)
    assert not costs.move_pays(4)
    assert not costs.move_pays(16, moves=4), "there and back, twice"


def test_what_was_measured_long_ago_fades():
    costs = Costs()
    costs.moved(1, 100.0)
    for _ in range(1000):
        costs.moved(1, 0.001)
    assert costs.seconds_per_move < 0.1
