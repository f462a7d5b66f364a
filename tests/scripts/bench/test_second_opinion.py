"""Logits beside other libraries': the measure on known cases, and vLLM's own where an interpreter of it is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from pageant.scripts.bench import second_opinion
from pageant.scripts.bench.quantized.logits import log_probabilities

PYTHON = os.environ.get("PAGEANT_VLLM_PYTHON")


def test_tiny_models_agree_with_transformers_and_others_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own decoder stands in for vLLM; once its words are off, and once it refuses."""

    def read(reader: str, python: Path, folder: Path, token_ids: list[int], dtype: str) -> torch.Tensor:
        name = (folder / "config.json").read_text()
        if "qwen3_next" in name:
            raise RuntimeError("no such heads")
        found = log_probabilities(folder, token_ids)
        return found if "gpt_oss" in name else found.flip(1)

    monkeypatch.setattr(second_opinion, "read_elsewhere", read)
    rows = second_opinion.compare(list(second_opinion.MODELS), tmp_path)
    same, other, refused = rows
    assert all(row["transformers"] < 1e-4 for row in rows)
    assert (same["error"], same["same_next"], same["error_max"]) == (0, 1, 0.01)
    assert other["error"] > 0.5 > other["same_next"]
    assert (refused["error"], refused["refusal"]) == (None, "no such heads")
    assert refused["error_max"] > 0.01, "bfloat16 rounds"


@pytest.mark.skipif(PYTHON is None, reason="PAGEANT_VLLM_PYTHON names no interpreter that has vLLM")
def test_logits_are_those_of_vllm() -> None:
    rows = second_opinion.compare(["gpt_oss", "qwen3_next"], Path(str(PYTHON)))
    assert [row["refusal"] for row in rows] == [None, None]
    assert all(row["error"] <= row["error_max"] for row in rows), rows
