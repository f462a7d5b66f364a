"""Latent attention: absorbed against transformers' expanded form, what it caches, and block FP8 checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pageant import kernels
from pageant.kernels.quantized import QuantizedWeight, dequantize
from pageant.kernels.reference import ReferenceKernels
from pageant.models import Checkpoint
from pageant.models.checkpoint import CheckpointError
from pageant.models.loading import load_decoder
from pageant.models.placing import as_rows
from pageant.protocol.errors import ConfigurationError
from tests.models.latent_families import LATENT
from tests.models.ready.test_fp8 import written

PROMPT = torch.randint(6, 331, (40,), generator=torch.Generator().manual_seed(4)).tolist()


@torch.inference_mode()
def expanded(model: Any) -> list[tuple[Tensor, Tensor]]:
    """What each attention module of transformers reads and returns, which makes keys and values of each head."""
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(module: Any, args: Any, kwargs: Any, result: Any) -> None:
        seen.append((kwargs["hidden_states"][0], result[0][0]))

    hooks = [layer.self_attn.register_forward_hook(keep, with_kwargs=True) for layer in model.model.layers]
    model(torch.tensor([PROMPT]))
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", LATENT)
def test_absorbed_heads_are_the_expanded_ones(
    family: Callable[[str], Any], pages: Any, name: str, backend: str
) -> None:
    """Compare at each layer, in chunks, where nothing else rounds."""
    decoder = family(name).load(backend=backend)
    seen = expanded(family(name).model)
    assert len(seen) == len(decoder._layers) == 3
    for layer, (normed, expected) in enumerate(seen):
        run, found = pages(decoder), []
        for start, stop in ((0, 1), (1, 8), (8, 40)):
            places = run._advance("a", stop - start)
            batch = run._batch({"a": places})
            attention = decoder._layers[layer]._attention
            with torch.inference_mode():
                found.append(attention(normed[start:stop], torch.tensor(places), batch, run.caches[layer]))
        torch.testing.assert_close(torch.cat(found), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("name", LATENT)
def test_chunks_of_every_size_give_the_logits_of_the_whole(
    family: Callable[[str], Any], pages: Any, name: str, chunk: int
) -> None:
    prompt = (PROMPT * 2)[:70]
    run = pages(family(name).load(backend="cpu"))
    parts = [prompt[start : start + chunk] for start in range(0, len(prompt), chunk)]
    with torch.inference_mode():
        expected = family(name).model(torch.tensor([prompt])).logits[0]
    logits = torch.cat([run.step({"a": part})["a"] for part in parts])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_takes_its_latent_and_one_key(family: Callable[[str], Any], dtype: str) -> None:
    decoder = family("deepseek_v3_grouped").load(dtype)
    config, itemsize = family("deepseek_v3_grouped").model.config, {"float32": 4, "bfloat16": 2}[dtype]
    per_token = 3 * (config.kv_lora_rank + config.qk_rope_head_dim) * itemsize
    caches = decoder.allocate_kv_caches(num_blocks=5, block_size=4)
    assert decoder.kv_bytes_per_block(4) == 4 * per_token
    assert sum(keys.nbytes + values.nbytes for keys, values in caches) == 5 * 4 * per_token


def test_latents_in_8_bits_are_refused_by_name(family: Callable[[str], Any]) -> None:
    decoder = family("deepseek_v2").load()
    decoder.kv_dtype = torch.int8
    with pytest.raises(ConfigurationError, match="kv_cache_dtype is int8, and the model caches latents"):
        decoder.allocate_kv_caches(num_blocks=5, block_size=4)


def test_triton_kernels_are_refused_by_name(family: Callable[[str], Any]) -> None:
    class Triton(ReferenceKernels):
        name = "triton"

    with pytest.raises(CheckpointError, match="latent attention on cpu, which the triton kernels do not"):
        load_decoder(Checkpoint(family("deepseek_v2").path), kernels=Triton())


@pytest.mark.parametrize("name", ["deepseek_v2_lite", "deepseek_v3_grouped"])
def test_block_fp8_checkpoints_load_as_near_as_8_bits_are(
    family: Callable[[str], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Compare with the checkpoint dequantised. What makes keys and values of latents is dequantised, and exact."""
    caplog.set_level(logging.INFO, "pageant.models")
    dense = written(family(name), tmp_path, "block")
    checkpoint = Checkpoint(tmp_path)
    decoder: Any = load_decoder(checkpoint, "float32", kernels=kernels.load("reference"))
    assert "FP8" in caplog.text
    for weight, place in checkpoint.decoder()[1].items():
        expected = as_rows(dense[checkpoint.tensors[weight].name].float(), place)
        found = decoder.weight(place)
        if isinstance(found, QuantizedWeight):
            assert (dequantize(found, torch.float32) - expected).norm() / expected.norm() < 0.006, weight
        else:
            torch.testing.assert_close(found, expected)
