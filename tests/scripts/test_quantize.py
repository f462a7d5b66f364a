"""`pageant quantize`: what it prints, where, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import pageant
from pageant.models import Checkpoint
from pageant.scripts.cli import app


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantize") / "model"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_checkpoint_is_written_with_progress_on_standard_error(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["quantize", str(model), str(out), "--scheme", "w4a16"])
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert line.startswith(
        f"{out}: 14 matrices in 4 bits with a scale for 64 inputs, rounded to the nearest; "
    )
    told = result.stderr.splitlines()
    assert len(told) == 10 and told[-1] == "14 of 14 matrices, model.layers.1.mlp.down_proj"
    Checkpoint(out).check()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--scheme", "nf4"], "pageant: scheme: found 'nf4'; expected one of w4a16"),
        (
            ["--scheme", "w4a16", "--group-size", "7"],
            "pageant: group-size: found 7; expected a multiple of 32",
        ),
        (
            ["--scheme", "w4a16", "--ignore", "lm_head.x"],
            "pageant: ignore: found 'lm_head.x', which names no",
        ),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_said_in_one_line(
    model: Path, tmp_path: Path, arguments: list[str], found: str
) -> None:
    result = CliRunner().invoke(app, ["quantize", str(model), str(tmp_path / "out"), *arguments])
    assert result.exit_code == 1 and not result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith(found)


def test_a_model_that_is_not_there_and_one_that_is(model: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, ["quantize", *map(str, arguments), "--scheme", "int8"])
        assert result.exit_code == 1
        return result.stderr

    assert "no such folder" in run(tmp_path / "nowhere", tmp_path / "out")
    assert "there already" in run(model, model)


def test_it_is_a_function_too(model: Path, tmp_path: Path) -> None:
    written = pageant.quantize(model, tmp_path / "out", "w8a8")
    assert written.matrices == 14 and written.path == tmp_path / "out"


def test_texts_to_calibrate_by_are_counted(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "ids.jsonl"
    file.write_text('{"token_ids": [1, 2, 3, 4, 5]}\n{"token_ids": [6, 7]}\n')
    command = ["quantize", str(model), str(tmp_path / "out"), "--scheme", "int4", "--calibrate", str(file)]
    result = CliRunner().invoke(
        app, [*command, "--sequence-length", "4", "--no-act-order", "--damping", "0.1"]
    )
    assert result.exit_code == 0, result.output
    assert "by GPTQ with 6 tokens; " in result.stdout
    Checkpoint(tmp_path / "out").check()


@pytest.mark.parametrize(
    ("option", "name"),
    [
        (["--sequences", "5"], "sequences"),
        (["--sequence-length", "5"], "sequence-length"),
        (["--no-act-order"], "act-order"),
        (["--damping", "0.1"], "damping"),
    ],
)
def test_settings_of_a_calibration_need_one(
    model: Path, tmp_path: Path, option: list[str], name: str
) -> None:
    command = ["quantize", str(model), str(tmp_path / "out"), "--scheme", "int4", *option]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"pageant: {name}: found without calibrate; expected a file of texts")
