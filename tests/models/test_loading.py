"""Weights into their places: whole, cast, from shards, without a second copy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from pageant import kernels
from pageant.kernels.quantized import QuantizedWeight, dequantize
from pageant.kernels.reference import ReferenceKernels
from pageant.kernels.tiled import LinearWeight, TiledWeight
from pageant.models import Checkpoint, CheckpointError
from pageant.models.loading import load_decoder
from pageant.models.placing import as_rows
from pageant.models.quantization import QUANTIZATIONS, Quantization


def weights_of(
    family: Any, dtype: str = "auto", path: Path | None = None, backend: str = "auto"
) -> dict[str, torch.Tensor | TiledWeight]:
    """A decoder's weights under the checkpoint's names."""
    checkpoint = Checkpoint(path or family.path)
    decoder = load_decoder(checkpoint, dtype, kernels=kernels.load(backend))
    return {name: decoder.weight(place) for name, place in checkpoint.decoder()[1].items()}


def theirs_of(family: Any) -> dict[str, torch.Tensor]:
    """The checkpoint's own."""
    names, found = Checkpoint(family.path).architecture.names, {}
    for name, tensor in load_file(family.path / "model.safetensors").items():
        part = names.part_of_stack(names.canonical(name))
        if part is None:
            found[names.canonical(name)] = tensor
        else:
            found |= {part.format(expert=number): one for number, one in enumerate(tensor)}
    return found


def test_every_weight_is_where_it_belongs(any_family: Any) -> None:
    places, theirs = Checkpoint(any_family.path).decoder()[1], theirs_of(any_family)
    for name, ours in weights_of(any_family).items():
        place, expected = places[name], theirs[name]
        if place.paired_heads is not None:
            expected = as_rows(expected.T if place.transposed else expected, place)
            ours = ours.T if place.transposed else ours
        assert torch.equal(ours.reshape(expected.shape), expected + place.plus), name


def test_weights_in_tiles_are_those_in_rows(any_family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, (spec, places) = theirs_of(any_family), Checkpoint(any_family.path).decoder()
    monkeypatch.setattr(ReferenceKernels, "tiled_dtypes", {torch.bfloat16})
    num_tiled = 0
    for name, ours in weights_of(any_family, "bfloat16", backend="reference").items():
        if isinstance(ours, TiledWeight):
            rows = as_rows(theirs[name], places[name]).bfloat16()
            assert torch.equal(ours.plain(), rows.T if places[name].transposed else rows), name
            num_tiled += 1
    assert (num_tiled > 0) == (spec.hidden_size % 32 == 0)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_quantised_weights_in_tiles_are_those_in_rows(
    any_family: Any, quantization: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(any_family.path)
    places = checkpoint.decoder()[1]

    def load() -> dict[str, QuantizedWeight]:
        loaded = load_decoder(checkpoint, kernels=ReferenceKernels(), quantization=quantization)
        weights = {name: loaded.weight(place) for name, place in places.items()}
        return {name: weight for name, weight in weights.items() if isinstance(weight, QuantizedWeight)}

    expected = load()
    monkeypatch.setattr(ReferenceKernels, "quantized_tiles", {torch.float32})
    found = load()
    for name, weight in found.items():
        assert torch.equal(dequantize(weight, torch.float32), dequantize(expected[name], torch.float32)), name
    assert found.keys() == expected.keys() and not any(weight.in_tiles for weight in expected.values())
    hidden_size = checkpoint.decoder()[0].hidden_size
    assert any(weight.in_tiles for weight in found.values()) == (hidden_size % 32 == 0)


def test_a_head_of_8_bits_is_in_halves_where_kernels_like_that(
    any_family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where logits are the product with it: elsewhere nobody has use for halves."""
    checkpoint = Checkpoint(any_family.path)
    whole = load_decoder(checkpoint, kernels=ReferenceKernels(), quantization="int8")
    monkeypatch.setattr(ReferenceKernels, "halves", {torch.float32})
    monkeypatch.setattr(ReferenceKernels, "quantized_tiles", {torch.float32})
    decoder = load_decoder(checkpoint, kernels=ReferenceKernels(), quantization="int8")
    spec, in_halves = decoder.spec, [name for name, weight in decoder._weights.items() if _is_halved(weight)]
    assert not any(_is_halved(weight) for weights in decoder._layer_weights for weight in weights.values())
    if decoder.head is None:
        assert (spec.logit_softcap, spec.logit_scale) != (None, None)
        assert not in_halves
        return
    head = "lm_head.weight" if "lm_head.weight" in decoder._weights else "embedding.weight"
    assert in_halves == ([head] if spec.vocab_size % 16 == 0 else [])
    if in_halves:
        found, expected = (dequantize(one.head, torch.float32) for one in (decoder, whole))
        assert (found - expected).norm() / expected.norm() < 0.02


def _is_halved(weight: LinearWeight) -> bool:
    return isinstance(weight, QuantizedWeight) and weight.in_halves


def test_every_weight_is_filled(any_family: Any) -> None:
    """Names that a family forgets would leave what was in memory before."""
    decoder, checkpoint = any_family.load(), Checkpoint(any_family.path)
    places = checkpoint.decoder()[1].values()
    for place in places:
        decoder.weight(place).fill_(float("nan"))
    assert sum(4 * prod(place.shape) for place in places) == decoder.num_bytes
    assert all(decoder.weight(place).isnan().all() for place in places)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_a_cache_of_gigabytes_takes_no_memory_before_it_is_used() -> None:
    code = (
        "import re, torch; from pageant.models.kv_cache import KVLayout\n"
        "def own(): return int(re.search(r'Anonymous: +([0-9]+)', open('/proc/self/smaps_rollup').read())[1])\n"
        "before = own()\n"
        "caches = KVLayout(4, 8, 128, torch.bfloat16).allocate(4096, 16, torch.device('cpu'))\n"
        "assert not caches[2][1][77].any() and caches[0][0].data_ptr() % 64 == 0\n"
        "caches[1][0][5] = 1\n"
        "print(sum(keys.nbytes + values.nbytes for keys, values in caches) // 1024, own() - before)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    allocated, used = map(int, result.stdout.split())
    assert allocated == 1024 * 1024 and used < 32 * 1024


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_cast_on_the_way(family: Callable[[str], Any], dtype: str) -> None:
    theirs = family("qwen2").model.state_dict()
    for name, weight in weights_of(family("qwen2"), dtype).items():
        ours = weight.plain() if isinstance(weight, TiledWeight) else weight
        assert torch.equal(ours, theirs[name].to(getattr(torch, dtype))), name


def test_shards_load_as_one_file_does(family: Callable[[str], Any], tmp_path: Path) -> None:
    model = family("llama")
    model.model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(Checkpoint(tmp_path).weight_files) > 1
    whole, sharded = weights_of(model), weights_of(model, path=tmp_path)
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_progress_ends_at_the_total(family: Callable[[str], Any]) -> None:
    seen: list[tuple[int, int]] = []
    checkpoint = Checkpoint(family("qwen3").path)
    decoder = load_decoder(checkpoint, kernels=kernels.load(), progress=lambda *step: seen.append(step))
    assert [read for read, _ in seen] == sorted({read for read, _ in seen})
    assert seen[-1] == (decoder.num_bytes, decoder.num_bytes)


def test_an_unknown_dtype_is_refused_with_the_known_ones(family: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="unknown dtype 'int4': expected one of auto, float32, bfloat16"):
        load_decoder(Checkpoint(family("llama").path), "int4", kernels=kernels.load())


def test_a_bad_checkpoint_is_refused_before_anything_is_allocated(
    family: Callable[[str], Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((family("llama").path / "config.json").read_bytes())
    save_file({"model.norm.weight": torch.zeros(96)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing tensors: model\.embed_tokens\.weight"):
        load_decoder(Checkpoint(tmp_path), kernels=kernels.load())


def test_a_tied_head_that_is_saved_must_be_the_embedding(
    family: Callable[[str], Any], tmp_path: Path
) -> None:
    """transformers would take the head for the truth, against the configuration."""
    source = family("qwen2").path
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": embedding.clone()}, tmp_path / "model.safetensors")
    load_decoder(Checkpoint(tmp_path), kernels=kernels.load())
    for other in (embedding + 1, embedding[:5].clone()):
        save_file(tensors | {"lm_head.weight": other}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"lm_head\.weight, which is not model\.embed_tokens"):
            load_decoder(Checkpoint(tmp_path), kernels=kernels.load())


def test_a_tied_matrix_that_is_saved_as_the_head_alone_is_the_embedding_too(
    family: Callable[[str], Any], tmp_path: Path
) -> None:
    source = family("llama3_tied").path
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors")
    embedding = tensors.pop("model.embed_tokens.weight")
    tensors.pop("lm_head.weight", None)
    save_file(tensors | {"lm_head.weight": embedding}, tmp_path / "model.safetensors")
    decoder = load_decoder(Checkpoint(tmp_path), kernels=kernels.load())
    whole = load_decoder(Checkpoint(source), kernels=kernels.load())
    hidden = torch.randn(3, embedding.shape[1], dtype=embedding.dtype)
    assert torch.equal(decoder.logits(hidden), whole.logits(hidden))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing tensors: model\.embed_tokens\.weight"):
        Checkpoint(tmp_path).check()


MEASURE = """
import sys, torch
from pageant import kernels
from pageant.models import Checkpoint, loading
from pageant.models.loading import load_decoder

def own_bytes():
    # Not of libraries, which other processes share, or not.
    total, counts = 0, False
    for line in open("/proc/self/smaps"):
        first, *rest = line.split()
        if not first.endswith(":"):  # a mapping, with its file
            counts = len(rest) < 5 or rest[4].startswith("[") or rest[4].endswith(".safetensors")
        elif first == "Rss:" and counts:
            total += 1024 * int(rest[0])
    return total

torch.ones(1) @ torch.ones(1)
loading.MAPPED_BYTES = 4_000_000
before, peak = own_bytes(), []
decoder = load_decoder(
    Checkpoint(sys.argv[1]),
    kernels=kernels.load(),
    quantization=sys.argv[2] or None,
    progress=lambda *_: peak.append(own_bytes()),
)
print(decoder.num_bytes, max(peak) - before)
"""


LARGE: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "fused": (
        LlamaForCausalLM,
        LlamaConfig,
        {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 5, "num_attention_heads": 8},
    ),
    "stacked": (
        MixtralForCausalLM,
        MixtralConfig,
        {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8}
        | {"max_position_embeddings": 2048},
    ),
    "transposed": (GPT2LMHeadModel, GPT2Config, {"n_embd": 512, "n_layer": 8, "n_head": 8}),
}


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("kind", "quantization"), [("fused", ""), ("stacked", ""), ("transposed", ""), ("fused", "int4")]
)
def test_memory_never_holds_the_model_twice(tmp_path: Path, kind: str, quantization: str) -> None:
    model_class, config_class, sizes = LARGE[kind]
    model_class(config_class(vocab_size=20_000, **sizes)).bfloat16().save_pretrained(tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path), quantization],
        check=True,
        capture_output=True,
        text=True,
    )
    weights, grown = map(int, result.stdout.split())
    assert weights > 25_000_000, "the model is meant to be large beside what else may grow"
    embedding, modules = (
        20_000 * 512 * 2,
        12_000_000,
    )  # one tensor at a time is mapped, and more of Python is loaded
    assert weights < grown < 1.1 * weights + embedding + modules
