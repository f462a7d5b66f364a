"""Tiny random models saved by transformers, each once a session."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from pageant import kernels
from pageant.models.checkpoint import Checkpoint
from pageant.models.loading import load_decoder
from tests.models.families import FAMILIES, FOREIGN, SWITCHING
from tests.models.family_sizes import COMMON
from tests.models.pages import Pages
from tests.models.small_checkpoints import save_small_checkpoint

NORM = re.compile(r"norm|\.ln_")


@dataclass(frozen=True)
class Family:
    """A tiny model of transformers, and the folder of its checkpoint."""

    path: Path
    model: PreTrainedModel

    def load(self, dtype: str = "auto", backend: str = "reference", max_model_len: int | None = None) -> Any:
        loaded = kernels.load(backend)
        return load_decoder(Checkpoint(self.path), dtype, "cpu", kernels=loaded, max_model_len=max_model_len)


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Family]:
    """Return a function that makes and saves the family of a name, once a session."""
    made: dict[str, Family] = {}

    def make(name: str) -> Family:
        if name not in made:
            made[name] = _make(name, tmp_path_factory.mktemp(name))
        return made[name]

    return make


@pytest.fixture(params=FAMILIES)
def any_family(request: pytest.FixtureRequest, family: Callable[[str], Family]) -> Family:
    """Every family with an architecture of ours, in turn."""
    return family(request.param)


@pytest.fixture(params=FAMILIES | FOREIGN)
def any_model(request: pytest.FixtureRequest, family: Callable[[str], Family]) -> Family:
    """Every family, in turn."""
    return family(request.param)


@pytest.fixture
def tested_architectures() -> set[str]:
    return {model_class.__name__ for model_class, _, _ in FAMILIES.values()}


@pytest.fixture
def pages() -> type[Pages]:
    return Pages


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a small, whole checkpoint, to be broken in one place."""
    save_small_checkpoint(tmp_path)
    return tmp_path


def _make(name: str, path: Path) -> Family:
    model_class, config_class, options = (FAMILIES | FOREIGN | SWITCHING)[name]
    torch.manual_seed(len(name))
    config = config_class(**copy.deepcopy(COMMON | options))  # some write into what they are given
    model = model_class(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if NORM.search(parameter_name) or parameter_name.endswith("bias"):  # they are ones and zeros
            parameter.data.normal_(mean=parameter.data.mean().item(), std=0.2)
        if parameter_name.endswith("gate_up_proj_bias"):
            parameter.data.mul_(25)  # so that some gates are clamped
        if parameter_name.endswith(("A_log", ".D", "dt_bias")):  # the same in all layers, and of large steps
            parameter.data.normal_(mean=-0.5, std=1.0)
        if parameter_name.endswith("sinks"):
            parameter.data.normal_(std=2.0)
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith(("e_score_correction_bias", "expert_bias")):
            buffer.normal_(std=0.2)
    model.save_pretrained(path)
    return Family(path, model)
