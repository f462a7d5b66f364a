"""The waiting queue: order, ends, and ghosts."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pageant.actors.scheduler.queue import WaitingQueue
from pageant.actors.scheduler.request import State


def waiting(key, tenant="", long=False):
    return SimpleNamespace(
        key=(float(key), key), serial=key, state=State.WAITING, tenant=tenant, is_long=long
    )


def end(queue, request):
    request.state = State.ENDED
    queue.discard(request)


def test_the_smallest_key_comes_first_whatever_the_order_of_arrival():
    queue = WaitingQueue()
    for key in (3, 1, 2):
        queue.push(waiting(key))
    assert [request.key[1] for request in queue.first(2)] == [1, 2]
    assert len(queue) == 1


def test_what_is_pushed_back_takes_its_place_again():
    queue = WaitingQueue()
    for key in (1, 2, 3):
        queue.push(waiting(key))
    first, second = queue.first(2)
    queue.push(second)
    queue.push(first)
    assert [request.key[1] for request in queue.first(9)] == [1, 2, 3]


def test_what_ended_is_passed_over():
    queue = WaitingQueue()
    requests = [waiting(key) for key in range(3)]
    for request in requests:
        queue.push(request)
    end(queue, requests[0])
    assert len(queue) == 2
    assert list(queue.first(9)) == requests[1:]
    assert len(queue) == 0


def test_of_what_ended_nothing_stays():
    queue = WaitingQueue()
    head = waiting(0)
    queue.push(head)
    for key in range(1, 5_000):
        queue.push(request := waiting(key))
        end(queue, request)
    assert len(queue) == 1
    assert sum(len(piece.entries) for piece in queue._short._requests[""]._segments) == 1
    assert list(queue.first(1)) == [head]


def test_only_waiting_requests_are_taken_in():
    request = waiting(1)
    request.state = State.RUNNING
    with pytest.raises(AssertionError):
        WaitingQueue().push(request)


def test_long_prompts_wait_while_there_is_no_room_for_another_and_others_go_past_them():
    queue = WaitingQueue()
    for key in range(6):
        queue.push(waiting(key, long=key % 2 == 0))
    assert [request.key[1] for request in queue.first(9, 1)] == [0, 1, 3, 5]
    assert [request.key[1] for request in queue.first(9, 0)] == []
    assert [request.key[1] for request in queue.first(9)] == [2, 4]


class Had:
    """Shares that each tenant has had."""

    def __init__(self, **had):
        self.had = had

    def rank(self, tenant):
        return self.had[tenant]

    def served(self, tenant, num_prompt_tokens, num_output_tokens):
        self.had[tenant] += num_prompt_tokens + num_output_tokens

    arrived = left = None


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.booleans()), max_size=40),
    st.randoms(use_true_random=False),
)
def test_the_next_is_of_the_tenant_that_had_least_whatever_is_charged_and_given_back(arrivals, random):
    shares = Had(a=0.0, b=5.0, c=5.0)
    queue, left = WaitingQueue(shares), []
    for key, (tenant, cost, ends) in enumerate(arrivals):
        request = waiting(key, tenant)
        queue.push(request)
        left.append(request)
        if ends:
            end(queue, left.pop(random.randrange(len(left))))
        shares.served(random.choice("abc"), cost, 0)
        for taken in list(queue.first(random.randrange(3))):  # and put back
            shares.served(taken.tenant, -1, 0)
            queue.push(taken)
    while left:
        (taken,) = queue.first(1)
        least = min(shares.rank(request.tenant) for request in left)
        assert shares.rank(taken.tenant) == least
        assert taken.key == min(one.key for one in left if one.tenant == taken.tenant)
        left.remove(taken)
        shares.served(taken.tenant, 3, 0)
    assert len(queue) == 0
