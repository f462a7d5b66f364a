"""The router's core: what it charges whom with, what it forgets, and what policies cannot do to it."""

from __future__ import annotations

import logging

import pytest

from pageant.actors.router.core import RouterCore
from pageant.actors.router.policies import POLICIES, RoutingPolicy, make_policy
from pageant.actors.router.replica import TICKET_SECONDS
from pageant.protocol.arrays import int32, int64
from pageant.protocol.block_names import block_names, full_blocks, root_name
from pageant.protocol.errors import TopologyError
from pageant.protocol.following import BlockEvents, RemovedBlock, StoredBlock
from pageant.protocol.routing import Load, Route

A, B = "replica-0/", "replica-1/"
PROMPT = list(range(1, 34))  # two blocks of 16, and one token


def load(*seen, waiting=0, seconds=0.001):
    return Load(seen=int64(seen), waiting_tokens=waiting, running=0, waiting=0, seconds_per_token=seconds)


def route(core, *prompts, now=0.0, salt=None, adapter=None, text=None):
    count = len(prompts)
    return core.route(
        Route(
            model="",
            token_ids=int32([token for prompt in prompts for token in prompt]),
            lengths=int32([len(prompt) for prompt in prompts]),
            max_tokens=int32([0] * count),
            **{"salts": (salt,) * count, "extra_keys": ((),) * count, "adapters": (adapter,) * count},
            **{
                "tenants": ("t",) * count,
                "text_tokens": int32([len(prompt) if text is None else text for prompt in prompts]),
            },
        ),
        now,
    )


def stored(prompt, *, reset=False, removed=(), salt=None):
    names = block_names(root_name(salt), full_blocks(int32(prompt), 16)[0])
    return BlockEvents(
        epoch=1,
        block_size=16,
        stored=tuple(StoredBlock(tier="device", name=name) for name in names),
        removed=tuple(RemovedBlock(tier="device", name=name) for name in removed),
        reset=reset,
    )


@pytest.fixture
def core():
    core = RouterCore(make_policy("prefix"))
    for name in (A, B):
        core.scheduler_up(name, 1)
        core.blocks_changed(name, stored([], reset=True))
        core.loaded(name, 1, load())
    return core


def waiting(core):
    return {name: one.waiting_tokens for name, one in core.replicas()}


def test_a_prompt_goes_where_its_prefix_is(core):
    core.blocks_changed(B, stored(PROMPT))
    routed = route(core, PROMPT)
    assert routed.places == (B,) and routed.expected_tokens.tolist() == [1]
    assert core.hit_tokens == 32


@pytest.mark.parametrize(("text", "left"), [(0, 33), (15, 33), (16, 17), (31, 17), (32, 1)])
def test_of_a_prompt_with_embeddings_the_text_before_them_is_looked_up(core, text, left):
    core.blocks_changed(B, stored(PROMPT))
    assert route(core, PROMPT, text=text).expected_tokens.tolist() == [left]


@pytest.mark.parametrize("other", [{"salt": "s"}, {"adapter": "a"}])
def test_a_prefix_of_another_salt_or_adapter_is_another(core, other):
    core.blocks_changed(B, stored(PROMPT))
    assert route(core, PROMPT, **other).expected_tokens.tolist() == [33]


def test_a_reset_or_another_epoch_takes_all_blocks_away(core):
    core.blocks_changed(B, stored(PROMPT))
    core.blocks_changed(B, stored([], reset=True))
    assert route(core, PROMPT).expected_tokens.tolist() == [33]


def test_a_charge_stands_until_the_load_has_its_ticket(core):
    routed = route(core, PROMPT)
    (place,), (ticket,) = routed.places, routed.tickets.tolist()
    charged = waiting(core)[place]
    assert charged >= 33
    core.loaded(place, 1, load(ticket + 1, waiting=5))
    assert waiting(core)[place] == charged + 5, "another's ticket"
    core.loaded(place, 1, load(ticket, waiting=33))
    assert waiting(core)[place] == 33, "it is in the load by now, and counts once"


def test_a_charge_that_no_load_ever_has_ends(core):
    (place,) = route(core, PROMPT).places
    assert waiting(core)[place]
    route(core, [1], now=TICKET_SECONDS + 0.1)
    assert waiting(core)[place] <= 17, "the later one at most"


def test_a_load_of_a_former_life_is_ignored(core):
    core.scheduler_down(A, 1)
    core.loaded(A, 1, load(waiting=1000))
    assert waiting(core)[A] == 0
    core.scheduler_up(A, 2)
    core.loaded(A, 1, load(waiting=1000))
    assert waiting(core)[A] == 0
    core.loaded(A, 2, load(waiting=7))
    assert waiting(core)[A] == 7
    core.scheduler_down(A, 1)
    assert dict(core.replicas())[A].takes_requests, "the word of a former life's end is late"


def test_whoever_is_down_drained_or_removed_gets_nothing(core):
    core.blocks_changed(A, stored(PROMPT))
    core.draining(A, is_draining=True)
    assert route(core, PROMPT).places == (B,)
    core.draining(A, is_draining=False)
    core.scheduler_down(A, 1)
    core.remove(B)
    assert route(core, PROMPT, [1]).places == ("", "")
    core.remove(A)
    core.scheduler_up("replica-7/", 3)
    assert route(core, PROMPT).places == ("replica-7/",)
    assert core._index._tiers == {"device": {}}


def test_a_removed_replicas_place_in_the_masks_is_clean(core):
    core.blocks_changed(B, stored(PROMPT))
    core.remove(B)
    core.scheduler_up("replica-9/", 1)
    core.blocks_changed("replica-9/", stored([]))
    assert route(core, PROMPT).expected_tokens.tolist() == [33]


def test_a_prompt_without_block_names_is_routed_all_the_same():
    core = RouterCore(make_policy("prefix"))
    core.scheduler_up(A, 1)
    assert route(core, PROMPT, []).places == (A, A)


def test_no_ticket_is_issued_twice():
    one, other = RouterCore(make_policy("least"), 1 << 40), RouterCore(make_policy("least"), 2 << 40)
    tickets = []
    for core in (one, other):
        core.scheduler_up(A, 1)
        tickets += route(core, *[[1]] * 5).tickets.tolist()
    assert len(set(tickets)) == 10


@pytest.mark.parametrize("routing", [name for name in POLICIES if name != "tenant"])
def test_each_policy_uses_all_replicas(routing):
    core = RouterCore(make_policy(routing))
    for number in range(3):
        core.scheduler_up(f"replica-{number}/", 1)
    places = [route(core, [number] * 30).places[0] for number in range(9)]
    assert [places.count(f"replica-{number}/") for number in range(3)] == [3, 3, 3]


def test_a_tenants_requests_stay_together(core):
    core.policy = make_policy("tenant")
    assert len({route(core, [number] * 30).places for number in range(9)}) == 1


class Raising(RoutingPolicy):
    def choose(self, request, replicas):
        raise KeyError("x")


class Gone(RoutingPolicy):
    def choose(self, request, replicas):
        return type(replicas[0])("replica-99/", *[0] * 5)


class Silent(RoutingPolicy):
    def choose(self, request, replicas):
        return None


@pytest.mark.parametrize("policy", [Raising, Gone, Silent])
def test_a_policy_that_fails_is_passed_over_and_logged_once(core, policy, caplog):
    core.policy = policy()
    with caplog.at_level(logging.WARNING):
        places = [route(core, [number] * 30).places[0] for number in range(4)]
    assert sorted(places) == [A, A, B, B] and core.policy_failures == 4
    assert [record.message.count(policy.__name__) for record in caplog.records] == [1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("prefx", "no policy 'prefx'; did you mean 'prefix'?"),
        ("nowhere:X", "there is no module 'nowhere'"),
        ("collections:OrderedDict", "has no method 'choose'"),
    ],
)
def test_a_policy_that_is_none_is_refused(name, text):
    with pytest.raises(TopologyError) as caught:
        make_policy(name)
    assert caught.value.place == "actors.router.options.routing" and text in str(caught.value)
