"""Requests are handed from a user's thread to the node's."""

from __future__ import annotations

import os
from collections import deque
from types import SimpleNamespace

import pytest

from pageant.actors.client.session import OPENED_AT_ONCE, Session


class Frontend:
    def __init__(self):
        self.opened, self.aborted = [], []

    def open(self, opening):
        self.opened.append(opening.request_id)

    def abort_all(self, request_ids):
        self.aborted += request_ids


class NodeThread:
    """Runs what it is given when it is told to, one call after another."""

    def __init__(self):
        self.calls = deque()

    def call(self, function, *arguments):
        self.calls.append((function, arguments))

    def turn(self):
        function, arguments = self.calls.popleft()
        function(*arguments)


@pytest.fixture
def session(monkeypatch):
    frontend = Frontend()
    monkeypatch.setattr(Session, "frontend", frontend)
    session = Session.__new__(Session)
    session._thread, session._is_open, session._opening = NodeThread(), True, deque()
    session._process = os.getpid()
    return session


def openings(count):
    return [SimpleNamespace(request_id=f"r{index}") for index in range(count)]


def test_one_request_is_opened_in_the_turn_that_brings_it(session):
    session.open_all(openings(1))
    session._thread.turn()
    assert session.frontend.opened == ["r0"] and not session._thread.calls


def test_many_are_opened_some_at_a_time_in_their_order(session):
    many = openings(2 * OPENED_AT_ONCE + 1)
    session.open_all(many)
    for turn in (1, 2):
        session._thread.turn()
        assert len(session.frontend.opened) == turn * OPENED_AT_ONCE
    session._thread.turn()
    assert session.frontend.opened == [one.request_id for one in many] and not session._thread.calls


def test_what_comes_meanwhile_is_opened_after_them(session):
    session.open_all(openings(OPENED_AT_ONCE + 1))
    session._thread.turn()
    session.open_all([SimpleNamespace(request_id="late")])
    while session._thread.calls:
        session._thread.turn()
    assert session.frontend.opened[-2:] == [f"r{OPENED_AT_ONCE}", "late"]


def test_what_is_aborted_before_its_turn_is_never_opened(session):
    many = openings(3 * OPENED_AT_ONCE)
    session.open_all(many)
    session._thread.turn()
    session.abort([one.request_id for one in many])
    while session._thread.calls:
        session._thread.turn()
    assert len(session.frontend.opened) == 2 * OPENED_AT_ONCE  # the next turn was asked for before
    assert session.frontend.aborted == [one.request_id for one in many]
