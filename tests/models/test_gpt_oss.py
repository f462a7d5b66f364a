"""gpt-oss: what no other family has, and all ways in which its prompts are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pageant.models import Checkpoint, CheckpointError

PROMPT = torch.randint(6, 331, (150,), generator=torch.Generator().manual_seed(7)).tolist()
"""Longer than 16 windows."""


@pytest.fixture(scope="module")
def expected(family: Callable[[str], Any]) -> torch.Tensor:
    """The prompt's logits by transformers."""
    with torch.inference_mode():
        logits: torch.Tensor = family("gpt_oss").model(torch.tensor([PROMPT])).logits[0]
    return logits


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_chunks_of_a_prompt_past_the_window_give_the_logits_of_transformers(
    family: Callable[[str], Any], pages: Any, expected: torch.Tensor, backend: str, size: int
) -> None:
    """Other requests' decodes and chunks are in the same steps."""
    run = pages(family("gpt_oss").load(backend=backend), num_blocks=160)
    found = []
    for start in range(0, len(PROMPT), size):
        other = {"b": PROMPT[:3], "c": PROMPT[start : start + 1]} if start < 40 else {}
        found.append(run.step({"a": PROMPT[start : start + size], **other})["a"])
    torch.testing.assert_close(torch.cat(found), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_prefix_that_is_in_the_cache_already_gives_the_same_logits(
    family: Callable[[str], Any], pages: Any, expected: torch.Tensor, backend: str
) -> None:
    run = pages(family("gpt_oss").load(backend=backend), num_blocks=160)
    run.step({"first": PROMPT[:96] + PROMPT[:5]})
    run.tables["second"], run.computed["second"] = run.tables["first"][:24], 96
    logits = run.step({"second": PROMPT[96:]})["second"]
    torch.testing.assert_close(logits, expected[96:], atol=1e-4, rtol=0)


def test_gates_and_ups_of_a_checkpoint_are_taken_apart(family: Callable[[str], Any]) -> None:
    saved, decoder = family("gpt_oss").model.state_dict(), family("gpt_oss").load()
    places = Checkpoint(family("gpt_oss").path).decoder()[1]
    name = "model.layers.1.mlp.experts.3.gate_up_proj"
    for kind, suffix in (("weight", ""), ("bias", "_bias")):
        whole = saved[f"model.layers.1.mlp.experts.gate_up_proj{suffix}"][3]
        gates_and_ups = decoder.weight(places[f"{name}.{kind}"])
        rows = gates_and_ups.T if kind == "weight" else gates_and_ups
        columns = whole.T if kind == "weight" else whole
        assert torch.equal(rows, torch.cat((columns[::2], columns[1::2])))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit is 5.0; expected 7.0"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha is 1.0; expected 1.702"),
        ({"num_experts_per_tok": 6}, "num_experts_per_tok is 6; expected no more than the 5 experts"),
        ({"layer_types": ["sliding_attention"]}, "layer_types is ['sliding_attention']; expected 3 times"),
        ({"num_local_experts": 4}, "unknown tensors: model.layers.0.mlp.experts.down_proj[4]"),
        ({"num_local_experts": 7}, "missing tensors: model.layers.0.mlp.experts.5.gate_up_proj.weight"),
        ({"intermediate_size": 96}, "gate_up_proj[0] has shape [96, 160]; expected [96, 192]"),
    ],
    ids=str,
)
def test_a_configuration_that_is_not_the_weights_is_refused(
    family: Callable[[str], Any], tmp_path: Any, changes: dict[str, Any], found: str
) -> None:
    import json
    import shutil

    source = family("gpt_oss").path
    config = json.loads((source / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(source / "model.safetensors", tmp_path)
    with pytest.raises(CheckpointError) as error:
        Checkpoint(tmp_path).check()
    assert found in str(error.value)
