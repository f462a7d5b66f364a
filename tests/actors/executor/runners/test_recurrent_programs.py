"""Recurrent layers in recorded steps: they draw what steps computed by Python draw, drafts between them or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.runner import TorchRunner
from tests.actors.executor.runners.test_recurrent_graphs import BLOCK_SIZE, WIDTH, steps
from tests.models.family_sizes import COMMON
from tests.models.recurrent_families import RECURRENT


@pytest.fixture(params=["qwen3_next", "falcon_h1", "lfm2"])
def configured(request, tmp_path, options):
    model_class, config_class, sizes = RECURRENT[request.param]
    torch.manual_seed(0)
    model_class(config_class(**(COMMON | sizes))).save_pretrained(tmp_path)
    options |= {"block_size": BLOCK_SIZE, "num_blocks": 100, "max_model_len": BLOCK_SIZE * WIDTH}
    return RunnerConfig(model=tmp_path, **options | {"backend": "cpu"}, max_num_batched_tokens=32)


@pytest.mark.parametrize("drafted", [False, True])
def test_recorded_steps_and_steps_with_drafts_draw_what_unrecorded_ones_do(configured, drafted):
    """A step with two wrong drafts is computed by Python, and recorded ones go on from the states that it leaves."""
    runner, without = TorchRunner(configured), TorchRunner(configured)
    without._passes._programs = None
    for inputs in steps(len(runner.windows)):
        if not drafted:
            inputs = replace(inputs, states=inputs.states._replace(unsure=inputs.states.unsure * 0))
        assert runner.launch(inputs).token_ids().tolist() == without.launch(inputs).token_ids().tolist()
    assert runner._passes._programs.num_recorded == 1, "plain decodes"
