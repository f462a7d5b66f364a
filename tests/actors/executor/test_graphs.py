"""Decode steps padded to graphs' sizes, with a stand-in for CUDA's capture: it plays again by calling again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import pageant
from pageant.actors.executor.batch import Batch
from pageant.actors.executor.cuda import CudaRunner
from pageant.actors.executor.graphs import padded_context, padded_size
from pageant.actors.executor.memory import device_budget
from pageant.actors.executor.runner import TorchRunner
from pageant.protocol.arrays import bools, int32
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence, StepPlan

DEMO = Path(pageant.__file__).parent / "models" / "demo"
BLOCKS, BLOCK_SIZE = 40, 4
PROMPTS = {0: [5, 9, 7, 11, 30], 2: [4] * 9, 3: [100, 101]}


class Replays:
    """Counts what is captured and what is played."""

    def __init__(self, refuse=False):
        self.captured = self.played = 0
        self.refuse = refuse

    def __call__(self, run):
        if self.refuse:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self.captured += 1

        def replay():
            self.played += 1
            return run()

        return replay


def options():
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


def cuda_runner(capture):
    return CudaRunner(
        DEMO, **options(), gpu_memory_utilization=0.9, max_num_batched_tokens=64, capture=capture
    )


def plan(number, *, new=(), rows, starts, counts):
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


def generate(runner, steps, temperature=0.0):
    """All prompts at once, then `steps` decodes of them, each planned before the tokens of the last are known."""
    batch = Batch(max_num_seqs=4, max_model_len=64, block_size=BLOCK_SIZE)
    new = tuple(
        NewSequence(
            row=row,
            token_ids=int32(tokens),
            blocks=int32([row * 9 + block for block in (3, 1, 4, 0, 5, 8, 2)]),
            params=SamplingParams(temperature=temperature, seed=row, top_k=20),
            num_prompt_tokens=len(tokens),
        )
        for row, tokens in PROMPTS.items()
    )
    lengths = np.array([len(tokens) for tokens in PROMPTS.values()])
    first = plan(1, new=new, rows=list(PROMPTS), starts=[0, 0, 0], counts=lengths)
    inputs = batch.apply(first)
    drawn, unknown = [], 0
    for step in range(steps + 1):
        launched = runner.launch(inputs)
        following = batch.apply(plan(step + 2, rows=list(PROMPTS), starts=lengths + step, counts=[1, 1, 1]))
        unknown += len(following.unknown)
        drawn.append(launched.token_ids().tolist())
        batch.take_tokens(inputs, np.array(drawn[-1]))
        inputs = following
    assert unknown == 3 * (steps + 1), "each step is meant to be planned ahead"
    return drawn


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padded_and_replayed_steps_draw_the_same_tokens(temperature):
    replays = Replays()
    drawn = generate(cuda_runner(replays), 12, temperature)
    assert drawn == generate(TorchRunner(DEMO, **options()), 12, temperature)
    assert (replays.captured, replays.played) == (1, 11), "the first decode is computed, then captured"


def test_padding_writes_to_the_spare_block_alone():
    runner = cuda_runner(Replays())
    generate(runner, 3)
    keys = runner._kv_caches[0][0]
    assert len(keys) == BLOCKS + 1 and bool(keys[BLOCKS, :, 0].any())
    assert not bool(keys[BLOCKS, :, 1:].any())
    used = {row * 9 + block for row in PROMPTS for block in (3, 1, 4, 0, 5, 8, 2)}
    assert not any(bool(keys[block].any()) for block in set(range(BLOCKS)) - used)


def test_what_cannot_be_captured_is_computed_and_said_once(caplog):
    drawn = generate(cuda_runner(Replays(refuse=True)), 4)
    assert drawn == generate(TorchRunner(DEMO, **options()), 4)
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == [
        "decode steps are computed without CUDA graphs: operation not permitted when stream is capturing"
    ]


def test_without_graphs_the_same_tokens_are_drawn():
    assert generate(cuda_runner(None), 4, 1.0) == generate(TorchRunner(DEMO, **options()), 4, 1.0)


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 4), (9, 16), (200, 224), (512, 512), (513, None)])
def test_a_batch_is_padded_to_the_next_size(rows, size):
    assert padded_size(rows) == size


@pytest.mark.parametrize(
    ("longest", "reach"), [(1, 1024), (1024, 1024), (1025, 4096), (20000, 65536), (90000, 100000)]
)
def test_lengths_are_in_few_ranges_up_to_the_models_own(longest, reach):
    assert padded_context(longest, 100_000) == reach


def test_the_budget_is_what_others_the_weights_and_a_step_leave_of_the_share():
    assert device_budget(free=70, total=100, share=0.9, step=5) == 55
    assert device_budget(free=4, total=100, share=0.9, step=5) == 0


def test_every_row_of_a_full_batch_has_a_graph():
    runner = cuda_runner(Replays())
    assert runner._graphs is not None and runner._graphs._rows_max == 4
    assert torch.equal(runner._graphs._tables, torch.full((4, 16), BLOCKS, dtype=torch.int32))
