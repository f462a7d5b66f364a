"""Placement of actors when nobody said where they live."""

from __future__ import annotations

import pytest

from pageant.actors.runtime.placement import place
from pageant.actors.runtime.plans import NodePlan


@pytest.mark.parametrize("prefix", ["", "a/"])
def test_auto_lets_a_grammar_live_with_its_executor_unless_its_node_is_written(prefix):
    nodes = {"front": NodePlan("front"), "gpu": NodePlan("gpu", process=True)}

    def where(placement, **wishes):
        wanted = {f"{prefix}grammar": (None,), f"{prefix}executor": (None,)}
        wanted |= {prefix + name: (node,) for name, node in wishes.items()}
        found = place(placement, "front", nodes, wanted, frozenset())[1]
        return found[f"{prefix}grammar"], found[f"{prefix}executor"]

    assert where("auto") == ((f"{prefix}executor",),) * 2
    assert where("auto", executor="gpu") == (("gpu",), ("gpu",))
    assert where("auto", grammar="gpu") == (("gpu",), (f"{prefix}executor",))
    assert where("one", executor="gpu") == (("front",), ("gpu",))
    assert where("each") == ((f"{prefix}grammar",), (f"{prefix}executor",))
