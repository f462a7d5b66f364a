"""An error of the device stays with the process that met it: the executor goes on in another, and nobody loses a token.

A stand-in fails as CUDA does: from the first error on, everything that its process does with the device fails.
"""

from __future__ import annotations

import psutil
import pytest

import pageant
from pageant import SamplingParams

MODULE = """
import os
import torch
from pathlib import Path
from pageant.actors.executor.actor import Executor

broken = False
lives = Path({folder!r})


def call_device():
    if broken:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")


class Runner:
    def __init__(self, runner, step):
        self._runner, self._left = runner, step

    def __getattr__(self, name):
        return getattr(self._runner, name)

    def launch(self, inputs):
        global broken
        self._left -= 1
        broken = broken or self._left == 0
        call_device()
        return self._runner.launch(inputs)


class Fails(Executor):
    def open_runner(self):
        global broken
        life = len(list(lives.iterdir()))
        (lives / f"{{life}}-{{os.getpid()}}").touch()
        broken = broken or life == {start}
        call_device()
        return Runner(super().open_runner(), {step} if life == 0 else -1)
"""


@pytest.mark.parametrize(
    ("step", "start", "lives"), [(4, None, 2), (4, 1, 3)], ids=["step", "step and start"]
)
def test_the_executor_goes_on_in_another_process(
    checkpoint, mixed_prompts, tmp_path, monkeypatch, step, start, lives
):
    folder = tmp_path / "lives"
    folder.mkdir()
    (tmp_path / "device_that_fails.py").write_text(MODULE.format(folder=str(folder), step=step, start=start))
    monkeypatch.syspath_prepend(tmp_path)
    actors = {"executor": {"class": "device_that_fails:Fails"}}
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with pageant.LLM(
        checkpoint.path, placement="each", progress=False, threads=1, num_blocks=128, actors=actors
    ) as llm:
        outputs = llm.generate(mixed_prompts[:3], params)
        found = [path.name for path in folder.iterdir()]
        pids = {int(name.partition("-")[2]) for name in found}
        assert len(found) == len(pids) == lives, "each life had a process of its own"
        assert sum(psutil.pid_exists(pid) for pid in pids) == 1
    for prompt, output in zip(mixed_prompts, outputs, strict=False):
        assert output.outputs[0].token_ids == checkpoint.greedy(prompt, 8)
