"""Settings of every test: one thread of torch's, no deadlines, the order in which two processes take the files, forks
in place of new interpreters, and adapters."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from pageant.kernels.cpu.build import cache_folder

from .warm_processes import REFUSED, Forks, install

HERE = Path(__file__).parent
# What takes longest comes first, so that the two of scripts/test come to their ends at about the same time.
LONGEST_FIRST = ("simulation", "integration", "scripts", "docs", "kernels")

# One thread is the fastest for models this small, wherever else work is going on: more of them wait for each other.
torch.set_num_threads(1)

# Compiled kernels stay where they are, whatever cache folder a test has for all else: compiling takes a minute.
os.environ.setdefault("PAGEANT_CACHE", str(cache_folder()))

if sys.platform == "linux":
    install(Forks(os.environ))

# How long an example takes is no one's promise: a first one may compile a kernel, and others use the machine too.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(HERE).parts[0]
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give `--dist loadfile` a scheduler that goes on behind a fatal test."""
    if config.getvalue("dist") != "loadfile":
        return None
    from .crash_once import CrashOnce

    return CrashOnce(config, log)


@pytest.fixture
def real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every process of the test be a new interpreter; see `warm_processes`."""
    monkeypatch.setenv(REFUSED, "1")


@pytest.fixture(scope="session")
def save_adapter(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Saves adapters, each in a folder of its own; see `random_adapters`."""
    from .random_adapters import save_adapter

    return lambda *arguments, **config: save_adapter(tmp_path_factory.mktemp("adapter"), *arguments, **config)


@pytest.fixture(scope="session")
def packed_gptq() -> Callable[..., Any]:
    """Return a function that packs a matrix in GPTQ's layout; see `quantised_models`."""
    from .quantised_models import packed

    return packed


@pytest.fixture(scope="session")
def save_gptq() -> Callable[..., None]:
    """Return a function that writes a checkpoint in GPTQ's layout; see `quantised_models`."""
    from .quantised_models import save_gptq

    return save_gptq
