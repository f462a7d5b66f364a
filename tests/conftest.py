"""What holds for every test: one thread of torch's, and the order in which two processes take the files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
# What takes longest comes first, so that the two of scripts/test come to their ends at about the same time.
LONGEST_FIRST = ("simulation", "integration", "scripts", "docs", "kernels")

# One thread is the fastest for models this small, wherever else work is going on: more of them wait for each other.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(HERE).parts[0]
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=place)
