"""Names that vLLM's users can type, as `scripts/dropin/names.py` wrote them down from an installed vLLM."""

import json
from pathlib import Path

import pytest

NAMES = Path(__file__).parents[3] / "data" / "vllm-0.32-names.json"


@pytest.fixture(scope="session")
def vllm():
    return json.loads(NAMES.read_text())
