"""Some requests of a replica move to another because someone asks for it."""

from __future__ import annotations

import pytest

from pageant.actors.runtime.address import model_of
from pageant.protocol.errors import BadRequest
from pageant.protocol.replicas import DRAINING, ROLE, Move, MoveRequests, RequestsMoved
from pageant.protocol.serving import Finished, Submit
from pageant.protocol.supervision import ActorChanged
from tests.actors.frontend.test_moving import Stage


@pytest.fixture(params=["", "small/"])
def stage(request) -> Stage:
    """Replica 0 is alone when requests come; replica 1 comes later."""
    stage = Stage(request.param)
    stage.replica(0)
    return stage


def move(stage: Stage, num_tokens: int, source: int = 0, target: int = 1) -> RequestsMoved:
    prefixes = {"source": source, "target": target}
    prefixes = {name: f"{stage.model}replica-{number}/" for name, number in prefixes.items()}
    assert all(model_of(prefix) == stage.model for prefix in prefixes.values())
    return stage.actor.move_requests(MoveRequests(**prefixes, num_tokens=num_tokens))


async def submitted(stage: Stage, *lengths: int) -> list[str]:
    """The wire ids of requests with prompts of such lengths, in their order."""
    for number, length in enumerate(lengths):
        await stage.open(f"r{number}", prompt=[1] * length)
    return [one.request_id for _, one in stage.told(Submit)]


async def test_the_latest_move_as_far_as_their_tokens_go(stage):
    names = await submitted(stage, 4, 9, 3, 5)
    stage.hear(0, names[3], [7, 7], 0)
    stage.replica(1)
    found = move(stage, 10)
    assert (found.num_sequences, found.num_tokens) == (2, 10)
    ((place, asked),) = stage.told(Move)
    assert (place, asked.request_ids, asked.epoch) == ("replica-0/", (names[3], names[2]), 0)
    assert move(stage, 3).num_sequences == 0, "those move already, and the others have more tokens"
    before = len(stage.said)
    stage.hear_moved(0, asked.request_ids)
    again = stage.told(Submit, before)
    assert [place for place, _ in again] == ["replica-1/"] * 2
    assert [one.resume.token_ids.tolist() for _, one in again] == [[7, 7], []]
    assert move(stage, 100, source=1, target=0).num_sequences == 2, "they may move again"


async def test_one_that_has_ended_meanwhile_ends(stage):
    (name,) = await submitted(stage, 4)
    stage.replica(1)
    move(stage, 4)
    stage.hear_moved(0, [], unknown=[name])
    stage.hear(0, name, [5], 0, Finished(reason="length"))
    assert len(stage.told(Submit)) == 1 and not stage.actor.num_open


async def test_a_target_that_closes_meanwhile_gets_nothing(stage):
    (name,) = await submitted(stage, 4)
    stage.replica(1)
    move(stage, 4)
    stage.down("replica-1/blocks")
    stage.hear_moved(0, [name])
    assert [place for place, _ in stage.told(Submit)] == ["replica-0/"] * 2


async def test_the_scheduler_dies_before_it_answers(stage):
    await submitted(stage, 4)
    stage.replica(1)
    move(stage, 4)
    stage.down("replica-0/scheduler")
    assert [place for place, _ in stage.told(Submit)] == ["replica-0/", "replica-1/"]


@pytest.mark.parametrize("why", ["is gone", "only prefills", "drains"])
async def test_nothing_moves_to_a_target_that_goes_on_with_no_outputs(stage, why):
    await submitted(stage, 4)
    facts = {"only prefills": {ROLE: "prefill"}}.get(why, {})
    stage.replica(1, *(["blocks"] if why == "is gone" else []), **facts)
    if why == "drains":
        scheduler = f"{stage.model}replica-1/scheduler"
        stage.actor.peer_changed(ActorChanged(address=scheduler, incarnation=1, facts={DRAINING: 1}))
    with pytest.raises(BadRequest, match="expected another replica, which takes requests"):
        move(stage, 4)
    assert not stage.told(Move)
