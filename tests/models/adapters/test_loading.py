"""Adapters compute what transformers does with their matrices merged into the model's, row by row of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pageant import kernels
from pageant.kernels.cpu import BuildError
from pageant.models.adapters.loading import Adapters
from pageant.models.checkpoint import Checkpoint
from pageant.models.loading import load_decoder

LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MODULES = {
    "llama_biased": LLAMA,
    "qwen3": ("q_proj", "v_proj", "up_proj"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "gpt_neox": ("query_key_value", "dense", "dense_h_to_4h"),
    "granite": LLAMA,
    "mixtral": LLAMA[:4],
    "qwen2_moe": (*LLAMA[:4], "shared_expert.gate_proj", "shared_expert.down_proj"),
}
PROMPTS = {"one": [5, 9, 7, 11, 30, 2], "two": [8, 41, 300, 6, 17, 17, 90, 211, 3], "bare": [100, 101, 3]}


def logits_of(model: Any, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(torch.tensor([tokens])).logits[0]
    return found


def tokens_of(**names: str) -> list[tuple[str, Tensor]]:
    """Each adapter's tokens in a step of all the prompts."""
    starts, start = {}, 0
    for prompt, tokens in PROMPTS.items():
        starts[prompt] = torch.arange(start, start + len(tokens))
        start += len(tokens)
    return [(name, starts[prompt]) for prompt, name in names.items()]


@pytest.mark.parametrize("name", MODULES)
def test_a_step_of_two_adapters_and_none_computes_what_the_merged_models_do(
    family: Callable[[str], Any], save_adapter: Callable[..., Any], pages: Any, name: str
) -> None:
    base = family(name)
    one = save_adapter(base.model, MODULES[name])
    two = save_adapter(base.model, MODULES[name][:1], seed=1, r=5, use_rslora=True)
    decoder = base.load()
    folders = {"first": str(one.path), "second": str(two.path)}
    adapters = Adapters(folders, Checkpoint(base.path), decoder)
    with adapters.applied(tokens_of(one="first", two="second")):
        found = pages(decoder).step(PROMPTS)
    for prompt, model in (("one", one.merged), ("two", two.merged), ("bare", base.model)):
        expected, plain = (logits_of(each, PROMPTS[prompt]) for each in (model, base.model))
        torch.testing.assert_close(found[prompt], expected, rtol=1e-4, atol=1e-4)
        assert prompt == "bare" or (plain - expected).abs().max() > 0.01, "the adapter is meant to matter"
    torch.testing.assert_close(pages(decoder).step(PROMPTS)["one"], logits_of(base.model, PROMPTS["one"]))


def test_patterns_give_modules_ranks_and_scales_of_their_own(
    family: Callable[[str], Any], save_adapter: Callable[..., Any], pages: Any
) -> None:
    base = family("llama")
    patterns = {"rank_pattern": {"k_proj": 7, "layers.1.mlp.up_proj": 2}, "alpha_pattern": {"v_proj": 20}}
    adapter = save_adapter(base.model, LLAMA, **patterns)
    decoder = base.load()
    adapters = Adapters({"a": str(adapter.path)}, Checkpoint(base.path), decoder)
    with adapters.applied([("a", None)]):
        found = pages(decoder).step(PROMPTS)
    for prompt, tokens in PROMPTS.items():
        torch.testing.assert_close(found[prompt], logits_of(adapter.merged, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_is_the_same_alone_and_beside_others(
    family: Callable[[str], Any], save_adapter: Callable[..., Any], pages: Any, dtype: str
) -> None:
    try:
        loaded = kernels.load("cpu")
    except BuildError:
        pytest.skip("there is no compiler")
    base = family("qwen3")
    adapter = save_adapter(base.model, LLAMA)
    decoder = load_decoder(Checkpoint(base.path), dtype, "cpu", kernels=loaded)
    if min(loaded.rows_own_max.values()) < 18:
        pytest.skip("this machine's kernels are invariant for few rows only")
    adapters = Adapters({"a": str(adapter.path)}, Checkpoint(base.path), decoder)
    with adapters.applied(tokens_of(two="a")):
        beside = pages(decoder).step(PROMPTS)["two"]
    with adapters.applied([("a", None)]):
        alone = pages(decoder).step({"two": PROMPTS["two"]})["two"]
    assert torch.equal(alone, beside)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_they_add_to_quantised_weights_in_the_decoders_dtype(
    family: Callable[[str], Any], save_adapter: Callable[..., Any], quantization: Any
) -> None:
    base = family("llama")
    adapter = save_adapter(base.model, LLAMA)
    loaded = kernels.load("reference")
    decoder: Any = load_decoder(
        Checkpoint(base.path), "float32", "cpu", kernels=loaded, quantization=quantization
    )
    adapters = Adapters({"a": str(adapter.path)}, Checkpoint(base.path), decoder)
    x = torch.randn(4, 96, generator=torch.Generator().manual_seed(1))
    projection = decoder.projections[2, "qkv"]
    without = projection(x)
    with adapters.applied([("a", torch.tensor([1, 3]))]):
        added = projection(x) - without
    modules = [f"model.layers.2.self_attn.{part}_proj" for part in "qkv"]
    difference = torch.cat(
        [
            adapter.merged.get_submodule(module).weight - base.model.get_submodule(module).weight
            for module in modules
        ]
    )
    assert not added[[0, 2]].any()
    torch.testing.assert_close(added[[1, 3]], x[[1, 3]] @ difference.T, rtol=1e-3, atol=1e-4)


def test_a_step_that_fails_leaves_no_adapter_behind(
    family: Callable[[str], Any], save_adapter: Callable[..., Any]
) -> None:
    base = family("llama")
    adapter = save_adapter(base.model, LLAMA)
    decoder = base.load()
    adapters = Adapters({"a": str(adapter.path)}, Checkpoint(base.path), decoder)
    with pytest.raises(RuntimeError), adapters.applied([("a", None)]):
        assert all(projection.additions for projection in decoder.projections.values())
        raise RuntimeError
    assert not any(projection.additions for projection in decoder.projections.values())


def test_their_bytes_are_counted(family: Callable[[str], Any], save_adapter: Callable[..., Any]) -> None:
    base = family("llama")
    adapter = save_adapter(base.model, ("o_proj",))
    adapters = Adapters({"a": str(adapter.path)}, Checkpoint(base.path), base.load("bfloat16"))
    assert adapters.num_bytes == 3 * (96 * 16 + 3 * 96) * 2, "layers, matrices of rank 3, bytes of a number"
