"""Decoders with quantised weights: near to what they were, and smaller."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from pageant import kernels, models
from pageant.kernels.quantized import QuantizedWeight, dequantize
from pageant.models import Checkpoint, CheckpointError
from pageant.models.loading import load_decoder
from pageant.models.quantization import QUANTIZATIONS, Quantization, quantized_bits
from pageant.scripts.demo_model.batches import documents
from pageant.scripts.demo_model.dialogues import EPOCHS_MAX, conversations

DEMO = Path(models.__file__).parent / "demo"


def load(path: Path, quantization: Quantization | None, backend: str = "auto") -> Any:
    return load_decoder(Checkpoint(path), kernels=kernels.load(backend), quantization=quantization)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_every_weight_is_quantised_where_it_belongs(
    any_family: Any, quantization: Quantization, backend: str
) -> None:
    plain = load(any_family.path, None)
    decoder = load(any_family.path, quantization, backend)
    num_quantized = 0
    for ours, theirs in zip(
        (decoder._weights, *decoder._layer_weights), (plain._weights, *plain._layer_weights), strict=True
    ):
        for name, weight in ours.items():
            bits = quantized_bits(name, quantization)
            if bits is None:
                assert torch.equal(weight, theirs[name]), name
                continue
            assert isinstance(weight, QuantizedWeight) and weight.shape == theirs[name].shape
            error = (dequantize(weight, torch.float32) - theirs[name]).norm() / theirs[name].norm()
            assert error < {8: 0.01, 5: 0.06, 4: 0.12}[bits], name
            num_quantized += 1
    parts = [
        (layer.attends or layer.recurrent is not None, layer.mlp is not None) for layer in decoder.spec.layers
    ]
    assert num_quantized >= 1 + 2 * sum(map(sum, parts)), "two of each part, and the embedding"
    assert decoder.num_bytes < plain.num_bytes


def test_embedding_and_head_may_have_a_quantization_of_their_own() -> None:
    for name, inner, outer in (("qkv.weight", 4, None), ("embedding.weight", 8, 5), ("lm_head.weight", 8, 5)):
        assert quantized_bits(name, "int4", "int8") == inner
        assert quantized_bits(name, None, "int4") == outer
    decoder = load_decoder(
        Checkpoint(DEMO), kernels=kernels.load("reference"), quantization="int4", head_quantization="int8"
    )
    assert (
        decoder._weights["embedding.weight"].bits == 8 and decoder._layer_weights[0]["qkv.weight"].bits == 4
    )


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_logits_are_those_of_the_weights_that_were_quantised(
    any_family: Any, pages: Any, backend: str
) -> None:
    """A decoder of the dequantised weights, on the reference, is the oracle."""
    prompt = torch.randint(6, 331, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    decoder, plain = load(any_family.path, "int4", backend), load(any_family.path, None, "reference")
    for ours, theirs in zip(
        (decoder._weights, *decoder._layer_weights), (plain._weights, *plain._layer_weights), strict=True
    ):
        for name, weight in ours.items():
            if isinstance(weight, QuantizedWeight):
                theirs[name].copy_(dequantize(weight, torch.float32))
    expected = pages(plain).step({"a": prompt})["a"]
    run = pages(decoder)
    found = torch.cat([run.step({"a": chunk})["a"] for chunk in (prompt[:13], prompt[13:14], prompt[14:])])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def texts() -> dict[str, list[list[int]]]:
    """Documentation, and conversations in wordings that no training run has seen, as tokens."""
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    held_out = islice(conversations(EPOCHS_MAX + 1), 150)
    written = {
        "documentation": "<|endoftext|>".join(documents()[5::40]),
        "conversations": "".join(text for one in held_out for text, _ in one.segments()),
    }
    ids = {name: tokenizer.encode(text).ids for name, text in written.items()}
    return {name: [ids[i : i + 256] for i in range(0, 6000, 256)] for name, ids in ids.items()}


@torch.inference_mode()
def perplexities(quantization: Quantization | None, texts: dict[str, list[list[int]]], pages: Any) -> Any:
    decoder = load(DEMO, quantization)
    found = {}
    for name, rows in texts.items():
        losses = []
        for row in rows:
            logits = pages(decoder).step({"a": row})["a"]
            losses.append(F.cross_entropy(logits[:-1], torch.tensor(row[1:]), reduction="none"))
        found[name] = math.exp(torch.cat(losses).mean())
    return found


def test_the_demo_model_loses_little(pages: Any) -> None:
    text = texts()
    assert min(sum(map(len, rows)) for rows in text.values()) > 5000
    plain = perplexities(None, text, pages)
    for quantization, rise_max in (("int8", 0.005), ("int4", 0.04)):
        found = perplexities(quantization, text, pages)
        for name in text:
            rise = found[name] / plain[name] - 1
            print(f"{quantization}, {name}: perplexity changes by {rise:+.2%}")  # shown by pytest -s
            assert rise < rise_max, f"{quantization}: {name} rises by {rise:.2%}"
            assert rise != 0, "something is meant to be quantised"


def test_an_unknown_quantization_is_refused_with_the_known_ones(family: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="unknown quantization 'int3': expected one of int8, int4"):
        load(family("llama").path, "int3")  # type: ignore[arg-type]


def test_a_model_that_transformers_runs_is_not_quantised(family: Callable[[str], Any]) -> None:
    with pytest.raises(
        CheckpointError, match="quantization int8 for OPTForCausalLM, which transformers runs"
    ):
        load(family("opt").path, "int8")
