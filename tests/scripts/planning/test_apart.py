"""Plans in which some replicas compute prompts, and others go on with outputs."""

from __future__ import annotations

import pytest

from pageant.protocol.arrays import int32
from pageant.protocol.errors import BadRequest
from pageant.scripts.loads import Arrivals, Lengths
from pageant.scripts.planning.cluster import PlannedCluster
from pageant.scripts.planning.outcome import Outcome
from pageant.scripts.planning.replica import ReplicaShape
from pageant.scripts.planning.requests import LoadShape, PlannedRequest
from pageant.scripts.replay.costs import Fitted, StepCosts

SHAPE = ReplicaShape(num_blocks=512, block_size=16, max_model_len=1024, max_num_batched_tokens=256)
COSTS = StepCosts()
COSTS.fitted = Fitted(constant=0.01, token=1e-4)
COPY_SECONDS = 1e-5


def serve(requests: list[PlannedRequest], replicas: int = 2, **settings) -> Outcome:
    kinds = {"prefills": 1, "handover": "always", "copy_seconds": COPY_SECONDS, **settings}
    return PlannedCluster(SHAPE, COSTS, (1.0,) * replicas, **kinds).run(requests)


def drawn(rate: float, count: int = 100) -> list[PlannedRequest]:
    lengths = Lengths.parse("64:256", "input_tokens"), Lengths.parse("16:48", "output_tokens")
    return list(LoadShape(Arrivals(rate), *lengths).draw(count))


def test_a_request_that_is_handed_over_waits_for_its_blocks_and_computes_the_rest():
    """300 tokens are 18 full blocks: two steps compute them, copies go there and back, and then comes the tail."""
    outcome = serve([PlannedRequest(1.0, int32(range(1, 301)), output_tokens=3, most_tokens=90)])
    assert (outcome.handed_over, outcome.output_tokens, outcome.cached_tokens) == (1, 3, 0)
    assert outcome.first_token.p50 == pytest.approx(2 * 0.01 + 300e-4)
    copies = (18 * 16 + 2 * 16) * COPY_SECONDS
    tail = 0.01 + 13e-4
    assert outcome.seconds == pytest.approx(0.05 + copies + tail + 0.0101, abs=18 * 16 * COPY_SECONDS)
    assert outcome.seconds < 0.05 + 0.05, "the prompt is not computed again"


def test_without_a_store_the_prompt_is_computed_again():
    asked = [PlannedRequest(1.0, int32(range(1, 301)), output_tokens=3, most_tokens=90)]
    again = serve(asked, copy_seconds=None)
    assert again.handed_over == 1 and again.seconds >= 0.05 + 0.05


def test_all_requests_are_served_whole_apart_as_together():
    asked = drawn(12.0, 60)
    apart = serve(asked, copy_seconds=1e-6)
    together = PlannedCluster(SHAPE, COSTS, (1.0,) * 2).run(asked)
    tokens = sum(request.output_tokens for request in asked)
    assert apart.output_tokens == together.output_tokens == tokens and not apart.refused
    assert apart.handed_over == len(asked) and not together.handed_over


def test_a_slow_store_costs_the_second_token():
    fast, slow = (serve(drawn(2.0, 20), copy_seconds=seconds) for seconds in (1e-6, 4e-5))
    assert slow.whole.mean > fast.whole.mean + 100 * 1e-5
    assert slow.first_token.p50 == pytest.approx(fast.first_token.p50)


def test_never_hands_nothing_over():
    assert serve(drawn(5.0, 20), handover="never").handed_over == 0


def test_replicas_that_all_compute_prompts_are_refused():
    with pytest.raises(BadRequest, match="2 of 2 replicas compute prompts"):
        serve(drawn(5.0, 1), prefills=2)
