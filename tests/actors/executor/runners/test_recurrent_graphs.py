"""Recurrent layers in the runner of a GPU: padded steps, and drafts that were wrong; beside a plain runner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pageant.actors.executor.batch.recurrent import StateTokens
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.cuda import CudaRunner
from pageant.actors.executor.runners.runner import TorchRunner
from pageant.scripts.samples.steps import step_inputs
from tests.actors.executor.runners.test_graphs import Replays
from tests.models.family_sizes import COMMON
from tests.models.recurrent_families import RECURRENT

BLOCK_SIZE, WIDTH = 8, 5


@pytest.fixture(scope="module", params=["qwen3_5", "falcon_h1"])
def checkpoint(request, tmp_path_factory):
    model_class, config_class, sizes = RECURRENT[request.param]
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp(request.param)
    model_class(config_class(**(COMMON | sizes))).save_pretrained(path)
    return path


@pytest.fixture
def configured(checkpoint, options):
    options |= {"block_size": BLOCK_SIZE, "num_blocks": 100, "max_model_len": BLOCK_SIZE * WIDTH}
    return RunnerConfig(model=checkpoint, **options, max_num_batched_tokens=32)


def steps(groups):
    """Yield steps of two sequences: prompts, decodes over a block's end, drafts of which two are wrong, and on."""
    tables = np.random.default_rng(0).permutation(100)[: groups * 2 * WIDTH].reshape(groups, 2, WIDTH)
    lengths = [[(13, 13), (6, 6)], *([(1, 14 + n), (1, 7 + n)] for n in range(4))]
    lengths += [[(3, 20), (1, 11)], [(1, 19), (1, 12)], [(1, 20), (1, 13)]]
    for number, step in enumerate(lengths):
        inputs = step_inputs(step)
        owners = np.repeat([0, 1], [new for new, _ in step])
        places, within = np.divmod(inputs.positions, BLOCK_SIZE)
        unsure = [2 * (step[0][0] == 3), 0]
        given = np.arange(len(owners)) * 7 % 300 + 3 + number
        yield replace(
            inputs,
            token_ids=np.where(inputs.token_ids < 0, inputs.token_ids, given),
            block_tables=tables.astype(np.int32),
            slots=tables[:, owners, places].astype(np.int64) * BLOCK_SIZE + within,
            states=StateTokens(np.arange(2), np.zeros(2, np.int64), np.array(unsure)),
        )


def test_padded_steps_and_wrong_drafts_draw_what_a_plain_runner_does(configured):
    replays = Replays()
    runner, plain = CudaRunner(configured, capture=replays), TorchRunner(configured)
    runner.prepare()
    captured = replays.captured
    assert captured == len(set(runner._graphs.shapes())) > 0
    for inputs in steps(len(runner.windows)):
        assert runner.launch(inputs).token_ids().tolist() == plain.launch(inputs).token_ids().tolist()
    assert (replays.captured, replays.played) == (captured, 7), "all but the drafts"


def test_the_largest_step_is_tried_with_states(configured):
    runner = CudaRunner(configured)
    with torch.inference_mode():
        runner._try_largest_step(BLOCK_SIZE, 4)
