"""Texts through a model layer by layer: hidden states as the decoder has them, and better weights for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pageant.models import Checkpoint, CheckpointError
from pageant.models.quantizing import layerwise
from pageant.models.quantizing.layerwise import Solving, round_by_layers
from pageant.models.quantizing.quantizer import quantize
from pageant.models.quantizing.schemes import SCHEMES
from pageant.models.quantizing.targets import select
from tests.models.quantizing.architectures import ONE_OF_EACH, ROUTED_AT_RANDOM

SEQUENCES = [[(7 * i + 3 * n) % 300 + 6 for i in range(length)] for n, length in enumerate((40, 23, 9))]


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], list[Any]]:
    """Run sequences through a model whose weights stay as they are; return its passes before the last layer."""

    def run(folder: Path) -> list[Any]:
        seen: list[Any] = []
        original = layerwise._Layer.__init__

        def begin(layer: Any, *arguments: Any) -> None:
            original(layer, *arguments)
            seen[:] = layer._passes

        monkeypatch.setattr(layerwise._Layer, "__init__", begin)
        monkeypatch.setattr(layerwise, "_solve", lambda *_: iter(()))
        checkpoint = Checkpoint(folder)
        assert not list(
            round_by_layers(checkpoint, select(checkpoint, ()), SCHEMES["w8a8"], SEQUENCES, Solving())
        )
        return seen

    return run


def test_hidden_states_are_those_of_the_decoder(any_family: Any, pages: Any, streams: Any) -> None:
    decoder = any_family.load("float32", max_model_len=40)
    last = len(decoder.spec.layers) - 1
    decoder.taps = (last,)
    if Checkpoint(any_family.path).names.stacks:
        with pytest.raises(CheckpointError, match="whose experts are saved in stacks"):
            streams(any_family.path)
        return
    (one,) = streams(any_family.path)
    run = pages(decoder)
    with torch.inference_mode():
        expected = []
        for name, sequence in zip("abc", SEQUENCES, strict=True):
            run.step({name: sequence})
            expected.append(decoder.tapped)
    torch.testing.assert_close(one.stream, torch.cat(expected), atol=2e-3, rtol=1e-3)


def write_ids(folder: Path, count: int, vocab_size: int = 331) -> Path:
    """Write JSON lines of random tokens, which repeat one another."""
    generator = torch.Generator().manual_seed(5)
    file = folder / "ids.jsonl"
    rows = torch.randint(6, vocab_size, (count, 48), generator=generator).tolist()
    file.write_text("\n".join(json.dumps({"token_ids": row}) for row in rows))
    return file


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH if name not in ROUTED_AT_RANDOM])
def test_logits_are_nearer_than_by_the_nearest_codes(
    family: Callable[[str], Any], pages: Any, tmp_path: Path, name: str
) -> None:
    model = family(name)
    ids = write_ids(tmp_path, 40)
    folders = [model.path, tmp_path / "nearest", tmp_path / "gptq"]
    # With 4 bits, random routers would send many tokens to other experts; with 8, a few.
    quantize(model.path, folders[1], "w8a16")
    written = quantize(model.path, folders[2], "w8a16", calibrate=ids)
    assert written.tokens == 40 * 48
    decoders = [type(model)(folder, model.model).load("float32") for folder in folders]
    generator = torch.Generator().manual_seed(6)
    errors = []
    for _ in range(6):
        held_out = torch.randint(6, 331, (90,), generator=generator).tolist()
        with torch.inference_mode():
            plain, *others = (pages(one).step({"a": held_out})["a"].log_softmax(-1) for one in decoders)
        errors.append(torch.stack([(other - plain).square().mean(1) for other in others]))
    nearest, by_gptq = torch.cat(errors, dim=1).median(dim=1).values.tolist()
    assert by_gptq < 0.95 * nearest


def test_experts_that_see_no_token_are_counted_and_rounded_to_the_nearest(
    family: Callable[[str], Any], tmp_path: Path
) -> None:
    ids = tmp_path / "ids.jsonl"
    ids.write_text('{"token_ids": [7, 7]}')
    written = quantize(family("mixtral").path, tmp_path / "out", "w8a8", calibrate=ids)
    # At most two of five experts in each of three layers.
    assert written.unseen >= 3 * 3 * 3
    assert "matrices of experts saw none of them" in written.description
    Checkpoint(written.path).check()


def test_the_last_layers_are_not_run_where_nothing_is_rounded(
    llama: Path, tmp_path: Path, read_back: Any
) -> None:
    ids = write_ids(tmp_path, 4, vocab_size=97)
    written = quantize(llama, tmp_path / "out", "int4", calibrate=ids, ignore=["re:model.layers.1"])
    assert written.matrices == 7 and all(".layers.0." in name for name in read_back(written.path))


def test_files_say_how_columns_were_ordered(llama: Path, tmp_path: Path) -> None:
    ids = write_ids(tmp_path, 4, vocab_size=97)

    def order_of(name: str, **options: Any) -> Any:
        written = quantize(llama, tmp_path / name, "w4a16", **options)
        section = json.loads((written.path / "config.json").read_text())["quantization_config"]
        return section["config_groups"]["group_0"]["weights"]["actorder"]

    assert order_of("nearest") is None
    assert order_of("ordered", calibrate=ids) == "static"
    assert order_of("unordered", calibrate=ids, solving=Solving(act_order=False)) is None
