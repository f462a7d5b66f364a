"""Followers of blocks know at any time which there are."""

from __future__ import annotations

import random

import numpy as np

from pageant.actors.blocks import followers
from pageant.actors.blocks.followers import Follower
from pageant.protocol.block_names import block_name, root_name
from pageant.protocol.following import StoredBlock
from tests.actors.blocks.test_tiers import make


class Knowing:
    """A router's view of one engine."""

    def __init__(self, manager):
        self.manager, self.follower, self.known = manager, Follower(), {}
        manager.core.follow(self.follower.note)

    def listen(self):
        core = self.manager.core
        for events in self.follower.take(1, 4, core.stored):
            if events.reset:
                self.known.clear()
            for gone in events.removed:
                self.known.pop((gone.tier, gone.name), None)
            self.known.update({((block.tier, block.name)): block for block in events.stored})
        return self.known

    def right(self):
        return {(block.tier, block.name) for block in self.manager.core.stored()}


def test_a_router_finds_a_prompts_prefix_by_its_names():
    manager = make(num_blocks=8)
    router = Knowing(manager)
    manager.assign(admit=[(1, range(10))])
    known = router.listen()
    first = block_name(root_name(), np.arange(4, dtype="<i4").tobytes())
    second = block_name(first, np.arange(4, 8, dtype="<i4").tobytes())
    assert set(known) == {("device", first), ("device", second)}
    block = known["device", second]
    assert (block.parent, block.token_ids.tolist()) == (first, [4, 5, 6, 7])


def test_who_follows_later_is_told_of_all_that_there_is_and_then_of_changes():
    manager = make(num_blocks=4)
    manager.assign(admit=[(1, range(16))])
    router = Knowing(manager)
    before = set(router.listen())
    assert len(before) == 4
    manager.assign(freed=[1], admit=[(2, range(20, 29))])
    assert set(router.listen()) == router.right()
    tiers = {tier for tier, _ in router.known}
    assert tiers == {"device", "host"}


def test_whatever_happens_a_follower_who_listens_now_and_then_is_right(monkeypatch):
    monkeypatch.setattr(followers, "CHANGES_MAX", 30)
    monkeypatch.setattr(followers, "BATCH", 7)
    chance = random.Random(5)
    manager = make(num_blocks=12, slots=9, disk=8)
    router, lengths = Knowing(manager), {}
    for serial in range(400):
        freed = [one for one in lengths if chance.random() < 0.3]
        for one in freed:
            del lengths[one]
        grown = [(one, length + 1, [chance.randrange(3)]) for one, length in lengths.items()]
        prompt = [chance.randrange(2) for _ in range(chance.randint(1, 20))]
        answer = manager.assign(freed=freed, grow=grown, admit=[(serial, prompt)])
        lengths.update({one: length for one, length, _ in grown[: answer.num_grown]})
        for one, _, _ in grown[answer.num_grown :]:
            manager.assign(freed=[one])
            del lengths[one]
        lengths.update({grant.serial: len(prompt) for grant in answer.admitted})
        if serial % 100 == 50:
            manager.core.release_all()
            lengths.clear()
        if chance.random() < 0.3:
            assert set(router.listen()) == router.right()
    assert {tier for tier, _ in router.listen()} == {"device", "host", "disk"}


def test_a_change_takes_the_place_of_an_earlier_one():
    follower = Follower()
    list(follower.take(1, 4, list))
    block = StoredBlock(tier="host", name=b"a")
    for change in (block, None, block, None):
        follower.note(("host", b"a"), change)
    (events,) = follower.take(1, 4, list)
    assert (events.stored, len(events.removed), events.reset) == ((), 1, False)
    assert not follower.has_events


def test_nobody_is_told_of_anything_when_the_last_one_has_left():
    manager = make(num_blocks=4)
    router = Knowing(manager)
    router.listen()
    manager.core.follow(None)
    manager.assign(admit=[(1, range(16))])
    manager.assign(freed=[1], admit=[(2, range(20, 36))])
    assert not router.follower.has_events
