"""A few sequences through a runner, planned by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pageant
from pageant.actors.executor.batch.batch import Batch
from pageant.protocol.arrays import bools, int32
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence, StepPlan
from pageant.scripts.samples.adapters import save_random_adapter

BLOCKS, BLOCK_SIZE = 40, 4
PROMPTS = {0: [5, 9, 7, 11, 30], 2: [4] * 9, 3: [100, 101]}


@pytest.fixture
def demo():
    """The demo model's folder."""
    return Path(pageant.__file__).parent / "models" / "demo"


@pytest.fixture
def options():
    """Return the options of a runner that is to generate."""
    return {
        "dtype": "float32",
        "device": "cpu",
        "backend": "reference",
        "block_size": BLOCK_SIZE,
        "max_model_len": 64,
        "max_num_seqs": 4,
        "budget_bytes": None,
        "num_blocks": BLOCKS,
        "threads": 1,
    }


@pytest.fixture
def adapters(demo, tmp_path):
    """The folders of two, by name."""
    return {
        name: str(save_random_adapter(tmp_path / name, demo, rank=4, seed=seed, size=0.3))
        for seed, name in enumerate(("one", "two"))
    }


@pytest.fixture
def generate():
    """Generates with a runner, and returns the tokens of each step."""
    return _generate


def plan_of(number, *, new=(), rows, starts, counts):
    """A plan whose rows all draw."""
    return StepPlan(
        number=number,
        epoch=1,
        freed_rows=int32([]),
        new=new,
        grown_rows=int32([]),
        grown_counts=int32([]),
        grown_blocks=int32([]),
        rows=int32(rows),
        starts=int32(starts),
        num_tokens=int32(counts),
        draws=bools([True] * len(rows)),
    )


def _generate(runner, steps, temperature=0.0, adapters=(), **asked):
    """All prompts at once, then `steps` decodes of them, each planned before the tokens of the last are known.

    `adapters` are names, by row; what else is `asked` is so of all.
    """
    adapters = dict(adapters)
    batch = Batch(
        max_num_seqs=4, max_model_len=64, block_size=BLOCK_SIZE, adapters=sorted({*adapters.values()})
    )
    new = tuple(
        NewSequence(
            row=row,
            token_ids=int32(tokens),
            blocks=int32([row * 9 + block for block in (3, 1, 4, 0, 5, 8, 2)]),
            params=SamplingParams(temperature=temperature, seed=row, top_k=20, **asked),
            num_prompt_tokens=len(tokens),
            adapter=adapters.get(row),
        )
        for row, tokens in PROMPTS.items()
    )
    lengths = np.array([len(tokens) for tokens in PROMPTS.values()])
    first = plan_of(1, new=new, rows=list(PROMPTS), starts=[0, 0, 0], counts=lengths)
    inputs = batch.apply(first)
    drawn, unknown = [], 0
    for step in range(steps + 1):
        launched = runner.launch(inputs)
        following = batch.apply(
            plan_of(step + 2, rows=list(PROMPTS), starts=lengths + step, counts=[1, 1, 1])
        )
        unknown += len(following.unknown)
        drawn.append(launched.token_ids().tolist())
        batch.take_tokens(inputs, np.array(drawn[-1]))
        inputs = following
    assert unknown == 3 * (steps + 1), "each step is meant to be planned ahead"
    return drawn
