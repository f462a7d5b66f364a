"""A whole gpt-oss on these kernels: sinks, windows, biased experts and MXFP4's codes, beside transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM

from pageant.kernels.base import Kernels
from pageant.models import Checkpoint
from pageant.models.loading import load_decoder
from tests.models.pages import Pages

PROMPT = torch.randint(3, 60, (20,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = GptOssForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "sinks" in name:
            parameter.data.normal_()
    path = tmp_path_factory.mktemp("gpt_oss")
    model.save_pretrained(path)
    return path, model


@pytest.mark.parametrize(("name", "error_max"), [("float32", 1e-4), ("float16", 2e-2)])
def test_logits_are_those_of_transformers(
    triton_kernels: Kernels, device: torch.device, saved: tuple[Path, Any], name: str, error_max: float
) -> None:
    if device.type == "cuda":
        pytest.skip("tests/gpu has larger ones")
    path, model = saved
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    run = Pages(load_decoder(Checkpoint(path), name, device, kernels=triton_kernels))
    chunks = (PROMPT[:13], PROMPT[13:14], PROMPT[14:])
    logits = torch.cat([run.step({"a": chunk, "b": chunk[:2]})["a"] for chunk in chunks])
    torch.testing.assert_close(logits, expected, atol=error_max, rtol=0)
