"""A batch that is driven by hand, for every module that plans steps."""

from __future__ import annotations

import pytest

from tests.actors.executor.batch.planned_batch import Executor


@pytest.fixture
def executor() -> Executor:
    """A batch without sequences."""
    return Executor()
