"""The waiting queue: order, ends, and ghosts."""

from types import SimpleNamespace

import pytest

from pageant.actors.scheduler.queue import GHOSTS_MIN, WaitingQueue
from pageant.actors.scheduler.request import State


def waiting(key):
    return SimpleNamespace(key=((float(key),), key), state=State.WAITING)


def end(queue, request):
    request.state = State.ENDED
    queue.discard()


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


def test_ghosts_are_swept_out_when_they_are_the_larger_part():
    queue = WaitingQueue()
    head = waiting(0)
    queue.push(head)
    for key in range(1, 50_000):
        queue.push(request := waiting(key))
        end(queue, request)
    assert len(queue) == 1
    assert len(queue._heap) <= GHOSTS_MIN + 3
    assert list(queue.first(1)) == [head]


def test_only_waiting_requests_are_taken_in():
    request = waiting(1)
    request.state = State.RUNNING
    with pytest.raises(AssertionError):
        WaitingQueue().push(request)
