"""Groups of executors: several compute one model, and say what one says alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pageant import LLM, SamplingParams

DEMO = str(Path(__file__).parents[2] / "models" / "demo")
SMALL: dict[str, Any] = {
    **{"dtype": "float32", "threads": 1, "num_blocks": 64, "max_model_len": 256, "kernels": "reference"},
    "enable_prefix_caching": True,
}
PROMPTS = ["Once upon a time", "The little dog", "A very long story about a girl named Lily who"]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
ALL_KINDS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(temperature=0.9, top_k=40, top_p=0.95, min_p=0.02, seed=7, max_tokens=16),
    "penalised": SamplingParams(
        temperature=0.7,
        seed=3,
        max_tokens=16,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        logit_bias={11: 2.0},
    ),
    "several": SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=8),
    "logprobs": SamplingParams(temperature=0, max_tokens=6, logprobs=2, prompt_logprobs=1),
}


def said(llm: LLM, params: SamplingParams) -> list[Any]:
    """Return what comes of all prompts, log-probabilities rounded."""
    return [
        (
            [one.token_ids for one in output.outputs],
            [
                {token: round(entry.logprob, 3) for token, entry in (place or {}).items()}
                for places in (output.prompt_logprobs, *(one.logprobs for one in output.outputs))
                for place in places or ()
            ],
        )
        for output in llm.generate(PROMPTS, params, use_tqdm=False)
    ]


@pytest.fixture(scope="module")
def alone() -> Iterator[dict[str, Any]]:
    with LLM(DEMO, placement="one", **SMALL) as llm:
        yield {name: said(llm, params) for name, params in ALL_KINDS.items()}


@pytest.fixture(scope="module")
def group() -> Iterator[LLM]:
    """Two executors in one process."""
    with LLM(DEMO, placement="one", tensor_parallel=2, **SMALL) as llm:
        yield llm


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_two_say_what_one_says(group: LLM, alone: dict[str, Any], kind: str) -> None:
    assert said(group, ALL_KINDS[kind]) == alone[kind]


def test_processes_of_their_own_outlive_the_death_of_one(alone: dict[str, Any]) -> None:
    """The group falls and rises as one: whatever was asked is answered, and the same."""
    with LLM(DEMO, placement="auto", tensor_parallel=2, **SMALL) as llm:
        assert said(llm, GREEDY) == alone["greedy"]
        nodes = {node.node: node.pid for node in llm.statistics()}
        assert {"executor-0", "executor-1"} <= nodes.keys()
        os.kill(nodes["executor-1"], signal.SIGKILL)
        assert said(llm, GREEDY) == alone["greedy"]
        entries = {name: actor for node in llm.statistics() for name, actor in node.actors.items()}
        assert entries["executor/0"].incarnation == entries["executor/1"].incarnation == 2
