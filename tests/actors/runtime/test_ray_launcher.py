"""What a launcher asks of a Ray cluster, without one."""

from __future__ import annotations

import pytest

from pageant.actors.runtime.growth import needs_of
from pageant.actors.runtime.launcher import NodeNeeds
from pageant.actors.runtime.ray_room import why_never
from pageant.protocol.errors import TopologyError
from tests.actors.runtime.test_replicating import resolved

HOST = {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}}


def test_the_nodes_of_a_group_are_to_be_together():
    nodes = {
        "front": {},
        **{f"rank-{rank}-{{replica}}": {"process": True, "device": "cpu"} for rank in (0, 1)},
    }
    executor = {"nodes": [f"rank-{rank}-{{replica}}" for rank in (0, 1)], "options": {"tensor_parallel": 2}}
    found = resolved({"replicas": 2, "nodes": nodes, "actors": {"executor": executor}})
    needs = {node.name: needs_of(node, found.actors) for node in found.nodes}
    assert needs["rank-1-0"] == NodeNeeds("cpu", ("rank-0-0", "rank-1-0"))
    assert needs["front"] == NodeNeeds()


@pytest.mark.parametrize(
    ("hosts", "bundles", "strategy", "why"),
    [
        ([HOST], [{"CPU": 1.0, "GPU": 1.0}] * 2, "STRICT_PACK", None),
        ([HOST, HOST], [{"CPU": 1.0, "GPU": 2.0}] * 2, "PACK", None),
        ([HOST, HOST], [{"GPU": 2.0}] * 2, "STRICT_PACK", "the Ray cluster's hosts have 2 GPU at most"),
        ([HOST, HOST], [{"GPU": 2.0}] * 3, "SPREAD", "the whole Ray cluster has 4 GPU"),
        ([HOST], [{"TPU": 1.0}], "PACK", "the Ray cluster's hosts have none of that at most"),
        (
            [{**HOST, "Alive": False}],
            [{"CPU": 1.0}],
            "PACK",
            "the Ray cluster's hosts have none of that at most",
        ),
    ],
)
def test_what_a_cluster_never_has_is_known_at_once(hosts, bundles, strategy, why):
    assert why_never(hosts, bundles, strategy) == why


def test_options_that_cannot_be_are_refused():
    launcher = {"class": "ray", "options": {"strategy": "TIGHT"}}
    nodes = {"front": {}, "far": {"process": True, "launcher": launcher}}
    with pytest.raises(TopologyError, match="strategy is 'TIGHT'; expected one of STRICT_PACK"):
        resolved({"nodes": nodes})
