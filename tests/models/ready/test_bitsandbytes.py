"""bitsandbytes: its own checkpoints are in `test_formats`; here blocks across rows, and files that make no sense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pageant.models.config import Config
from pageant.models.ready import filling
from pageant.models.ready.bitsandbytes import BitsAndBytes
from pageant.models.tensor_files import read_header

Q_PROJ = "model.layers.0.self_attn.q_proj"
STATE = "weight.quant_state.bitsandbytes__nf4"


def state(**facts: Any) -> Tensor:
    text = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", **facts})
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(64, 96), (200, 64), (70, 33)])
def test_blocks_run_on_from_row_to_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: bool, shape: tuple[int, int]
) -> None:
    monkeypatch.setattr(filling, "_AT_A_TIME", 64 * 100)  # so that several pieces are decoded
    random = np.random.default_rng(shape[0])
    numbers = random.integers(0, 16, shape)
    table = np.sort(random.standard_normal(16)).astype(np.float32)
    blocks = -(-numbers.size // 64)
    flat = np.pad(numbers.reshape(-1), (0, numbers.size % 2))
    tensors = {
        "weight": torch.from_numpy((flat[0::2] << 4 | flat[1::2]).astype(np.uint8))[:, None],
        "weight.quant_map": torch.from_numpy(table),
        STATE: state(
            shape=list(shape), **({"nested_blocksize": 16, "nested_offset": 0.25} if nested else {})
        ),
    }
    absmax = (random.random(blocks) + 0.5).astype(np.float32)
    if nested:
        levels, coarse = random.standard_normal(256).astype(np.float32), random.random(-(-blocks // 16)) + 0.5
        chosen = random.integers(0, 256, blocks)
        absmax = levels[chosen] * coarse.astype(np.float32)[np.arange(blocks) // 16] + np.float32(0.25)
        tensors["weight.absmax"] = torch.from_numpy(chosen.astype(np.uint8))
        tensors["weight.nested_quant_map"] = torch.from_numpy(levels)
        tensors["weight.nested_absmax"] = torch.from_numpy(coarse.astype(np.float32))
    else:
        tensors["weight.absmax"] = torch.from_numpy(absmax)
    save_file(tensors, tmp_path / "model.safetensors")
    method = BitsAndBytes(Config({"load_in_4bit": True}, tmp_path / "config.json"))
    module = method.module("m", *shape, read_header(tmp_path / "model.safetensors"))
    module.check_values()
    expected = table[numbers.reshape(-1)] * absmax[np.arange(numbers.size) // 64]
    assert torch.equal(filling.dequantised(module, tensors), torch.from_numpy(expected.reshape(shape)))


@pytest.mark.parametrize(
    ("part", "change", "found"),
    [
        ("weight.absmax", lambda _: None, f"no {Q_PROJ}.weight.absmax beside"),
        ("weight.quant_map", lambda _: None, f"no {Q_PROJ}.weight.quant_map beside"),
        (STATE, lambda _: None, f"no {Q_PROJ}.{STATE} beside"),
        ("weight", lambda _: None, f"no {Q_PROJ}.weight beside"),
        ("weight.absmax", lambda old: old[1:], f"{Q_PROJ}.weight.absmax has shape [63]; expected [64]"),
        ("weight.absmax", lambda old: -old, f"{Q_PROJ}.weight.absmax has -"),
        ("weight.absmax", lambda old: old * float("nan"), f"{Q_PROJ}.weight.absmax has nan at [0]"),
        (
            "weight.quant_map",
            lambda old: old / 0,
            f"{Q_PROJ}.weight.quant_map has numbers that are not finite",
        ),
        ("weight", lambda old: old[1:], f"{Q_PROJ}.weight has shape [2047, 1]; expected [2048, 1]"),
        (STATE, lambda old: old[2:], f"{Q_PROJ}.{STATE} has no state of a quantised weight"),
        (STATE, lambda _: state(shape=[64, 32]), f"{Q_PROJ}.{STATE} has shape [64, 32]; expected [64, 64]"),
        (STATE, lambda _: state(shape=[64, 64], blocksize=0), "quant_type 'nf4' and blocks of 0"),
        (STATE, lambda _: state(shape=[64, 64], blocksize=2**60), "absmax has shape [64]; expected [1]"),
        (STATE, lambda _: state(shape=[64, 64], nested_offset=float("inf")), "nested_offset inf"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_tensors_that_make_no_sense_are_refused(
    copied: Callable[[str], Any], part: str, change: Callable[[Any], Any], found: str
) -> None:
    checkpoint = copied("bnb_nf4")
    checkpoint.edit(tensors={f"{Q_PROJ}.{part}": change(checkpoint.tensors[f"{Q_PROJ}.{part}"])})
    assert found in checkpoint.complaint()


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"load_in_4bit": False}, "load_in_4bit is False; expected either load_in_4bit or load_in_8bit"),
        ({"bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type is 'int4'; expected nf4 or fp4"),
        ({"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage is 'bfloat16'; expected 'uint8'"),
        ({"llm_int8_skip_modules": ["q_proj"]}, f"expected a dense {Q_PROJ}, which config.json excludes"),
        ({"load_in_4bit": False, "load_in_8bit": True}, "weight has dtype U8; expected I8"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_configuration_that_is_not_the_weights_is_refused(
    copied: Callable[[str], Any], config: dict[str, Any], found: str
) -> None:
    checkpoint = copied("bnb_nf4")
    checkpoint.edit(config)
    assert found in checkpoint.complaint()
