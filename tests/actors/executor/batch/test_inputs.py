"""Every optional part of a step is known to recorded steps: they compute it, or they leave the step alone."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pageant.actors.executor.batch.inputs import Packed, StepInputs
from pageant.scripts.samples.steps import step_inputs

COMPUTED_OTHERWISE: dict[str, Any] = {
    "ancestors": np.zeros(2, np.int64),
    "adapted": (object(),),
    "embedded": (object(),),
    "rotary": np.zeros((3, 2), np.int64),
    "encoded": object(),
    "pooled": object(),
}
"""Parts that change what a model computes, each with a value: a step that has one is not recorded."""
AFTER_THE_MODEL = {"processing", "verifying", "proposing", "guided", "blind", "failing"}
"""Parts that are done with a model's results, which recorded steps give as others do."""
OF_THE_MODEL = {"states"}
"""Parts that recorded steps compute."""


def test_each_optional_part_is_known():
    optional = {
        one.name
        for one in fields(StepInputs)
        if one.default is not MISSING or one.default_factory is not MISSING
    }
    assert optional == {*COMPUTED_OTHERWISE} | AFTER_THE_MODEL | OF_THE_MODEL
    assert {one.name for one in fields(Packed) if one.default is not MISSING} == OF_THE_MODEL


@pytest.mark.parametrize("name", COMPUTED_OTHERWISE)
def test_a_step_with_a_part_that_is_computed_otherwise_is_not_recorded(name):
    inputs = step_inputs([(2, 20)], draws_after_each=True)
    assert inputs.draws_after_each
    assert not replace(inputs, **{name: COMPUTED_OTHERWISE[name]}).draws_after_each


def test_a_step_of_which_a_prompt_is_scored_is_not_recorded():
    inputs = step_inputs([(2, 20)], draws_after_each=True)
    assert replace(inputs, scores=SimpleNamespace(prompt=None)).draws_after_each
    assert not replace(inputs, scores=SimpleNamespace(prompt=object())).draws_after_each
