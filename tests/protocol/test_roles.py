"""Features that a request needs."""

from __future__ import annotations

import pytest

from pageant.protocol.roles import EXECUTOR, Feature, features_needed
from pageant.protocol.sampling import SamplingParams


@pytest.mark.parametrize(
    ("params", "feature"),
    [
        ({"presence_penalty": -0.1}, Feature.PENALTIES),
        ({"frequency_penalty": 0.1}, Feature.PENALTIES),
        ({"repetition_penalty": 0.9}, Feature.PENALTIES),
        ({"logit_bias": {3: 0.5}}, Feature.LOGIT_BIAS),
        ({"allowed_token_ids": [3]}, Feature.ALLOWED_TOKENS),
        ({"min_tokens": 1}, Feature.MIN_TOKENS),
    ],
)
def test_what_shapes_logits_needs_a_feature_of_the_executor(params, feature):
    assert features_needed(SamplingParams(temperature=0, **params)) == {feature}
    assert feature in EXECUTOR.features


def test_parameters_that_change_nothing_need_nothing():
    params = SamplingParams(temperature=0, presence_penalty=0, repetition_penalty=1, logit_bias={})
    assert features_needed(params) == frozenset()
