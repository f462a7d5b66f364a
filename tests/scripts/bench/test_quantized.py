"""Comparisons of quantised checkpoints with other makers and readers: their measures and verdicts, on known cases."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import torch

from pageant.models.quantizing.quantizer import quantize
from pageant.scripts.bench.quantized import elsewhere, perplexity, speed
from pageant.scripts.bench.quantized.logits import RoundedInputs, log_probabilities
from pageant.scripts.bench.quantized.logits import perplexity as perplexity_of
from pageant.scripts.engine_options import DEMO_MODEL

DEMO = Path(DEMO_MODEL)
IDS = [(31 * index + 7) % 4096 for index in range(24)]
FOREIGN = ("in_transformers.py", "in_vllm.py", "in_gptqmodel.py")


def test_an_error_is_a_share_of_the_logits_and_blind_to_a_rows_mean() -> None:
    expected = torch.randn(5, 100, generator=torch.Generator().manual_seed(0))
    assert elsewhere.relative_error(expected + torch.arange(5.0)[:, None], expected) < 1e-6
    assert elsewhere.relative_error(1.02 * expected, expected) == pytest.approx(0.02, rel=1e-3)


def test_a_reader_is_compared_with_what_the_file_stands_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another decoder of ours stands in for the other library."""
    seen = []

    def read(reader: str, python: Path, folder: Path, token_ids: list[int], dtype: str) -> torch.Tensor:
        seen.append((reader, folder.name, dtype))
        return log_probabilities(folder if reader == "transformers" else DEMO, token_ids)

    monkeypatch.setattr(elsewhere, "read_elsewhere", read)
    rows = elsewhere.compare(DEMO, ["w4a16", "int8"], {"transformers": tmp_path, "vllm": tmp_path})
    first, second, third = seen
    assert first == ("transformers", "w4a16", "float32") and second == ("vllm", "w4a16", "bfloat16")
    assert third == ("transformers", "int8", "float32"), "vLLM has no product of such weights"
    errors = [row["error"] for row in rows]
    assert errors[0] == errors[2] == 0
    assert rows[0]["error_max"] == elsewhere.ERROR_MAX < rows[1]["error_max"] < 0.03 < errors[1]


def test_a_reader_that_fails_says_why(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such scheme >&2\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"in_vllm\.py ended with 3: no such scheme"):
        elsewhere.read_elsewhere("vllm", python, tmp_path, [1], "bfloat16")


def test_rounded_inputs_have_8_bits_by_token(tmp_path: Path) -> None:
    folder = quantize(DEMO, tmp_path / "w8a8", "w8a8").path
    plain, rounded = (log_probabilities(folder, IDS, rounds_inputs=rounds) for rounds in (False, True))
    assert 1e-4 < elsewhere.relative_error(rounded, plain) < 0.05
    x = torch.randn(4, 32)
    assert torch.equal(RoundedInputs().linear(x, torch.eye(32)), x)


def test_perplexity_is_that_of_each_sequence_alone() -> None:
    sequences = [IDS[:13], IDS[13:]]
    losses = []
    for sequence in sequences:
        following = torch.tensor(sequence[1:])[:, None]
        losses.append(-log_probabilities(DEMO, sequence)[:-1].gather(1, following))
    assert perplexity_of(DEMO, sequences) == pytest.approx(math.exp(torch.cat(losses).mean()), rel=1e-3)


def test_verdicts_compare_files_and_readers() -> None:
    found = {"original": 8.0, "nearest": 9.0, "gptq": 8.6}
    assert perplexity.verdicts(found) == {}
    found |= {"gptqmodel": 8.5, "gptqmodel by itself": 8.51}
    judged = perplexity.verdicts(found)
    assert judged["worse than gptqmodel's"] == pytest.approx(8.6 / 8.5 - 1)
    assert judged["reading off"] == pytest.approx(1 - 8.5 / 8.51)


@pytest.mark.parametrize(
    ("ratios", "held"),
    [
        ({"own": 0.97}, True),
        ({"own": 0.96}, False),
        ({"own": 1, "vllm": 1.3}, True),
        ({"own": 1, "vllm": 1.2}, False),
    ],
    ids=str,
)
def test_a_row_is_held_against_its_bars(ratios: dict[str, float], held: bool) -> None:
    assert speed.holds({"file_to": ratios}) == held


@pytest.mark.parametrize("name", FOREIGN)
def test_what_runs_in_other_environments_imports_nothing_of_ours(name: str) -> None:
    tree = ast.parse((Path(speed.__file__).parent / name).read_text())
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    ]
    assert imported and not any((module or "").startswith("pageant") for module in imported)
