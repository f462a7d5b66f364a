"""Checkpoints that `pageant.quantize` writes, behind an engine. The oracle is transformers with dequantised weights.

They are served with adapters from the start and at run time, with speculation, in chunks, over the wire and short of
blocks. Drafts come from a quantised model too, and an EAGLE head reads a quantised target.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import pageant
from pageant import SamplingParams
from pageant.models import Checkpoint
from pageant.models.ready.filling import dequantised
from pageant.scripts.engine_options import DEMO_MODEL

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SMALL = {"placement": "one", "threads": 1, "dtype": "float32", "num_blocks": 64, "max_num_seqs": 16}
LENGTH = 20
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
WAYS: dict[str, dict[str, Any]] = {
    "plainly": {},
    "in chunks, over the wire, short of blocks": {
        "wire": "always",
        "max_num_batched_tokens": 24,
        "num_blocks": 18,
    },
    "speculating": {"speculation": {"method": "ngram", "tokens": 3, "adaptive": False}},
}


@pytest.fixture(scope="module")
def folder(checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that most tests serve, in 4 bits by GPTQ."""
    place = tmp_path_factory.mktemp("written")
    texts = place / "texts.jsonl"
    rng = random.Random(5)
    rows = [[rng.randrange(4, checkpoint.vocab_size) for _ in range(40)] for _ in range(20)]
    texts.write_text("\n".join(f'{{"token_ids": {row}}}' for row in rows))
    return pageant.quantize(checkpoint.path, place / "int4", "int4", calibrate=texts).path


@pytest.fixture(scope="module")
def dense(checkpoint: Any, folder: Path) -> Any:
    """transformers' model with the weights that the folder stands for."""
    model = copy.deepcopy(checkpoint.model)
    ready, tensors = Checkpoint(folder).ready, load_file(folder / "model.safetensors")
    assert ready is not None
    state = model.state_dict()
    for name, module in ready.modules.items():
        parts = {role: tensors[info.name] for role, info in module.parts.items()}
        state[name].copy_(dequantised(module, parts))
    return model


@pytest.fixture(scope="module")
def adapter(dense: Any, save_adapter: Callable[..., Any]) -> Any:
    """Adapter of the dequantised model."""
    made = save_adapter(dense, LINEAR, size=0.2)
    made.merged.generation_config = dense.generation_config
    return made


@pytest.fixture(scope="module")
def right(checkpoint: Any, dense: Any, adapter: Any) -> Callable[..., list[int]]:
    """Return transformers' greedy tokens, with the adapter merged or without."""

    def greedy(with_adapter: bool, prompt: list[int]) -> list[int]:
        model = adapter.merged if with_adapter else dense
        found: list[int] = type(checkpoint)(checkpoint.path, model, 0).greedy(prompt, LENGTH)
        return found

    return greedy


@pytest.mark.parametrize("settings", WAYS.values(), ids=list(WAYS))
async def test_an_adapter_at_run_time_is_that_on_the_dequantised_base(
    checkpoint: Any, folder: Path, adapter: Any, right: Any, settings: dict[str, Any]
) -> None:
    rng = random.Random(11)
    prompts = [[rng.randrange(4, checkpoint.vocab_size) for _ in range(length)] for length in (3, 40, 64)]
    expected = {named: [right(named, prompt) for prompt in prompts] for named in (True, False)}
    assert expected[True] != expected[False], "the adapter is meant to matter"
    async with pageant.Engine(folder, **SMALL | settings) as engine:
        await engine.add_adapter("mine", adapter.path)
        for named, name in ((True, "mine"), (False, None), (True, "mine")):
            outputs = [await engine.complete(prompt, GREEDY, adapter=name) for prompt in prompts]
            assert [output.outputs[0].token_ids for output in outputs] == expected[named]
        await engine.remove_adapter("mine")
        (output,) = [await engine.complete(prompts[0], GREEDY)]
        assert output.outputs[0].token_ids == expected[False][0]


@pytest.mark.parametrize("draft", ["draft", "eagle"])
def test_drafts_of_quantised_models_and_for_them_change_no_token(tmp_path: Path, draft: str) -> None:
    target = pageant.quantize(DEMO_MODEL, tmp_path / "target", "w4a16").path
    drafter = DEMO_MODEL / draft
    if draft == "draft":
        drafter = pageant.quantize(drafter, tmp_path / "draft", "int8").path
    settings: dict[str, Any] = {"placement": "one", "progress": False, "num_blocks": 256}
    prompts = ["len is a function that returns", "A dictionary maps keys to"]
    found = []
    for speculation in ({}, {"speculation": {"method": draft, "model": str(drafter), "adaptive": False}}):
        with pageant.LLM(target, **settings, **speculation) as llm:
            found.append([output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)])
    assert found[0] == found[1]
