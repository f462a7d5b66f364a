"""The settings that a tune searches, and the topologies that it writes."""

from __future__ import annotations

import pytest
import yaml

from pageant.actors.client.resolved_models import resolve_topology
from pageant.actors.client.settings import topology_of
from pageant.protocol.errors import BadRequest
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.tuning.space import Candidate, Layout, Space
from pageant.scripts.tuning.writing import topology_text


def layouts(cores: int, *, replicas_max: int = 4, **fixed) -> list[str]:
    return [str(one) for one in Space.of(fixed, cores, replicas_max=replicas_max).choices["layout"]]


def test_layouts_share_the_cores_out_and_the_first_has_them_all():
    assert layouts(2) == ["1x2", "2x1", "1x1"]
    assert layouts(8) == ["1x8", "2x4", "4x2", "1x7"]
    assert layouts(8, replicas_max=2) == ["1x8", "2x4", "1x7"]
    assert layouts(1) == ["1x1"]
    assert layouts(8, threads=2) == ["1x2", "2x2", "4x2"]
    assert layouts(8, replicas=3) == ["3x2"]


def test_what_was_given_is_not_searched():
    space = Space.of({"policy": "fair", "max_num_seqs": 3}, 2, replicas_max=4)
    assert space.choices["policy"] == ("fair",) and space.choices["max_num_seqs"] == (3,)
    assert space.defaults == Candidate(Layout(1, 2), max_num_seqs=3, policy="fair")
    assert len(space) == len(list(space.candidates())) == 3 * 8
    assert space.changes(space.defaults) == 0


def test_quantisation_and_speculation_are_tried_where_they_are_allowed():
    space = Space.of({}, 2, replicas_max=1, quantizations=["int8"], speculates=True)
    assert space.choices["quantization"] == (None, "int8")
    assert space.choices["speculation_tokens"] == (0, 2, 4)
    assert Space.of({}, 2, replicas_max=1).choices["speculation_tokens"] == (0,)
    assert Space.of({"quantization": "int4"}, 2, replicas_max=1).choices["quantization"] == ("int4",)


def test_what_does_not_run_is_left_out():
    space = Space.of({}, 2, replicas_max=4, quantizations=["int8"])
    assert space.without(Layout(2, 1), None).choices["layout"] == (Layout(1, 2), Layout(1, 1))
    assert space.without(Layout(2, 1), "int8").choices["quantization"] == (None,)


@pytest.mark.parametrize(
    ("fixed", "quantizations", "message"),
    [
        ({"threads": 3}, [], "1 replicas with 3 threads each .* at most the 2 cores"),
        ({"replicas": 3}, [], "3 replicas with 1 threads each"),
        ({"replicas": 2, "threads": 2}, [], "2 replicas with 2 threads each"),
        ({}, ["int9"], "no quantisation 'int9'; expected int8 or int4"),
        ({"quantization": "int8"}, ["int4"], "quantization is int8 already"),
    ],
)
def test_what_a_machine_cannot_do_is_refused(fixed, quantizations, message):
    with pytest.raises(BadRequest, match=message):
        Space.of(fixed, 2, replicas_max=4, quantizations=quantizations)


def test_a_written_topology_is_read_back_with_the_candidates_settings():
    candidate = Candidate(Layout(2, 1), 8, 128, "shortest", "int8", 2)
    text = topology_text({"model": str(DEMO_MODEL), "max_model_len": "1K"}, candidate, ["found: this", ""])
    assert text.startswith("# found: this\n#\nmodel: ")
    written = yaml.safe_load(text)
    topology = topology_of(None, written, {})
    assert topology.replicas == 2 and topology.model == str(DEMO_MODEL)
    assert topology.settings == {
        "max_model_len": 1024,
        "threads": 1,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "policy": "shortest",
        "quantization": "int8",
        "speculation": {"method": "ngram", "tokens": 2},
    }
    names = {actor.name for actor in resolve_topology(topology).actors}
    assert {"replica-0/executor/0", "replica-1/executor/0", "replica-1/drafter"} <= names
