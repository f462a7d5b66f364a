"""AWQ: GPTQModel's own checkpoint, matrices packed by hand, and files that are not what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pageant.models import Checkpoint
from pageant.models.config import Config
from pageant.models.ready.awq import AWQ
from pageant.models.ready.filling import dequantised
from pageant.models.tensor_files import read_header

Q_PROJ = "model.layers.0.self_attn.q_proj"


def in_words(numbers: Any) -> torch.Tensor:
    """Pack whole numbers [R, C] of 4 bits along columns, in the order of the format's description."""
    words = np.zeros((numbers.shape[0], numbers.shape[1] // 8), np.int64)
    for column in range(numbers.shape[1]):
        place = [0, 2, 4, 6, 1, 3, 5, 7].index(column % 8)
        words[:, column // 8] |= numbers[:, column] << (4 * place)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


@pytest.mark.parametrize(
    ("group", "outputs", "inputs"), [(32, 96, 64), (128, 200, 256), (-1, 72, 64), (16, 8, 96)]
)
def test_a_module_is_what_its_description_says(tmp_path: Path, group: int, outputs: int, inputs: int) -> None:
    random = np.random.default_rng(outputs)
    size = inputs if group == -1 else group
    q = random.integers(0, 16, (inputs, outputs))
    zeros = random.integers(0, 16, (inputs // size, outputs))
    scales = (random.random(zeros.shape) + 0.5).astype(np.float16)
    tensors = {"qweight": in_words(q), "qzeros": in_words(zeros), "scales": torch.from_numpy(scales)}
    save_file(tensors, tmp_path / "model.safetensors")
    config = Config({"w_bit": 4, "bits": 4, "group_size": group, "version": "GEMM"}, tmp_path / "config.json")
    module = AWQ(config).module("m", outputs, inputs, read_header(tmp_path / "model.safetensors"))
    module.check_values()
    which = np.arange(inputs) // size
    weight = scales[which].astype(np.float32) * (q - zeros[which]).astype(np.float32)
    assert torch.equal(dequantised(module, tensors), torch.from_numpy(weight.T.copy()))
    assert module.fits == (size % 32 == 0) and module.bits == 5


def test_older_names_of_keys_are_understood(copied: Callable[[str], Any]) -> None:
    checkpoint = copied("awq")
    (checkpoint.path / "quantize_config.json").unlink(missing_ok=True)
    older = {
        "w_bit": 4,
        "q_group_size": 32,
        "version": "GEMM",
        "zero_point": True,
        "modules_to_not_convert": None,
    }
    checkpoint.edit(
        {key: ... for key in checkpoint.config["quantization_config"]} | {"quant_method": "awq"} | older
    )
    Checkpoint(checkpoint.path).check()


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"version": "gemv", "checkpoint_format": "gemv"}, "version is 'gemv'; expected gemm"),
        ({"version": "marlin", "checkpoint_format": "marlin"}, "version is 'marlin'; expected gemm"),
        ({"bits": 3}, "quantization_config.bits is 3; expected 4"),
        ({"bits": 8}, "quantization_config.bits is 8; expected 4"),
        ({"group_size": 0}, "quantization_config.group_size is 0"),
        ({"group_size": -2}, "quantization_config.group_size is -2"),
        ({"group_size": 48}, "a multiple of the group size, 48"),
        ({"group_size": 64}, "qzeros has shape [4, 16]; expected [2, 16]"),
        ({"modules_to_not_convert": ["q_proj"]}, f"expected a dense {Q_PROJ}, which config.json excludes"),
        (
            {"modules_to_not_convert": "q_proj"},
            "modules_to_not_convert is 'q_proj'; expected a list of strings",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_configuration_that_is_not_the_weights_is_refused(
    copied: Callable[[str], Any], config: dict[str, Any], found: str
) -> None:
    checkpoint = copied("awq")
    (checkpoint.path / "quantize_config.json").unlink(missing_ok=True)
    checkpoint.edit(config)
    assert found in checkpoint.complaint()


@pytest.mark.parametrize(
    ("part", "change", "found"),
    [
        ("scales", lambda _: None, f"no {Q_PROJ}.scales beside"),
        ("qzeros", lambda _: None, f"no {Q_PROJ}.qzeros beside"),
        ("qweight", lambda _: None, f"no {Q_PROJ}.qweight beside"),
        ("scales", lambda old: -old, f"{Q_PROJ}.scales has -"),
        ("scales", lambda old: old * float("nan"), f"{Q_PROJ}.scales has nan at [0, 0]"),
        (
            "qweight",
            lambda old: old.repeat(1, 2),
            f"{Q_PROJ}.qweight has shape [128, 32]; expected [128, 16]",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_tensors_that_make_no_sense_are_refused(
    copied: Callable[[str], Any], part: str, change: Callable[[Any], Any], found: str
) -> None:
    checkpoint = copied("awq")
    checkpoint.edit(tensors={f"{Q_PROJ}.{part}": change(checkpoint.tensors[f"{Q_PROJ}.{part}"])})
    assert found in checkpoint.complaint()


def test_a_list_that_names_half_of_a_name_does_not_exclude_it(copied: Callable[[str], Any]) -> None:
    """Lists for mixtures of experts say `gate`, which is their router."""
    checkpoint = copied("awq")
    checkpoint.edit({"modules_to_not_convert": ["gate", "lm_head"]})
    assert Checkpoint(checkpoint.path).ready.description.startswith(
        "AWQ: 4 matrices exact in 5.5 bits a weight"
    )
    checkpoint.edit({"modules_to_not_convert": ["mlp"]})
    assert "gate_proj, which config.json excludes" in checkpoint.complaint()
