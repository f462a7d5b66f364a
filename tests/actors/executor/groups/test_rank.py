"""A member that follows: orders in sequence, and what comes before its group has met."""

import pytest

from pageant.actors.executor.groups.rank import OrderMissed, Rank
from pageant.protocol.ranks import ForgetShare, Order


@pytest.fixture
def rank():
    return Rank(Rank.Options(model="", tensor_parallel=2))


def test_orders_of_the_leaders_former_life_are_not_followed_nor_missed(rank):
    rank.compute(Order(number=79, steps=()))
    rank.forget_share(ForgetShare(key="a"))
    assert rank._next_order == 1


def test_an_order_that_does_not_follow_the_last_one_is_an_error(rank):
    rank._runner = object()
    with pytest.raises(OrderMissed, match="order 2 came, 1 was expected"):
        rank.compute(Order(number=2, steps=()))
