"""Models that run on transformers' own code: which do, which do not, and why.

That those which do are right is in `test_decoder`, with the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pageant import kernels
from pageant.models import Checkpoint, CheckpointError
from pageant.models.fallback import FallbackDecoder
from pageant.models.foreign_attention import PagedStep, Unsupported, attend
from pageant.models.loading import load_decoder

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
REFUSED = {
    "linear_attention": (
        "MiniMax",
        {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 2, "block_size": 8},
        "it has layers of linear_attention",
    ),
    "unequal_keys_and_values": (
        "Glm4MoeLite",
        {"num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
        | {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "v_head_dim": 128},
        "keys and values of different sizes",
    ),
    "attention_twice": ("DiffLlama", {}, "do not call attention once each"),
    "rotation_by_length": (
        "SeedOss",
        {"head_dim": 8, "rope_parameters": LONG},
        "its rotary scaling, longrope",
    ),
}


def save(path: Path, name: str, **options: Any) -> Path:
    """Save a small random model of transformers, by the stem of its class's name."""
    config = getattr(transformers, f"{name}Config")(**SIZES | options)
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(path)
    return path


def complaint(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_decoder(Checkpoint(path), kernels=kernels.load("reference"))
    assert str(path) in str(error.value) and error.value.remedy
    return str(error.value)


def test_attention_with_an_option_that_is_not_known_is_refused() -> None:
    query = torch.zeros(1, 4, 3, 8)
    with pytest.raises(Unsupported, match="its attention wants position_bias"):
        attend(torch.nn.Identity(), query, query, query, None, position_bias=torch.zeros(4, 3, 3))


def test_a_model_without_a_file_runs_on_transformers(family: Callable[[str], Any]) -> None:
    checkpoint = Checkpoint(family("olmoe").path)
    checkpoint.check()
    decoder = family("olmoe").load("bfloat16")
    assert checkpoint.architecture is None and isinstance(decoder, FallbackDecoder)
    assert decoder.dtype == torch.bfloat16
    assert decoder.spec == checkpoint.spec() and decoder.spec.max_model_len == 512


def test_a_model_with_a_file_does_not(family: Callable[[str], Any]) -> None:
    assert not isinstance(family("qwen3_moe").load(), FallbackDecoder)


def test_two_models_in_one_process_keep_apart(family: Callable[[str], Any], pages: Any) -> None:
    """A drafter and its target may both be of this kind."""
    runs = [pages(family(name).load()) for name in ("cohere2", "opt", "cohere2")]
    first, other, second = (run.step({"a": [7, 8, 9], "b": [4]}) for run in runs)
    assert torch.equal(first["a"], second["a"]) and not torch.equal(first["a"], other["a"])


def test_knowing_that_transformers_can_run_it_loads_neither_it_nor_torch(
    family: Callable[[str], Any],
) -> None:
    code = (
        "import sys; from pageant.models import Checkpoint;"
        f"Checkpoint({str(family('opt').path)!r}).check();"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("why", REFUSED)
def test_a_model_that_cannot_run_in_pages_is_refused_with_the_reason(tmp_path: Path, why: str) -> None:
    name, options, reason = REFUSED[why]
    message = complaint(save(tmp_path, name, **options))
    assert f"{name}ForCausalLM cannot run in pages" in message and reason in message


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("BloomForCausalLM", "transformers fixes its attention"),
        ("MambaForCausalLM", "transformers fixes its attention"),
        ("NoSuchForCausalLM", "transformers does not have it"),
        ("Idefics3ForConditionalGeneration", "not a causal language model"),
    ],
)
def test_a_model_that_cannot_run_here_is_refused_before_it_is_loaded(
    family: Callable[[str], Any], tmp_path: Path, name: str, why: str
) -> None:
    config = json.loads((family("opt").path / "config.json").read_text()) | {"architectures": [name]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = complaint(tmp_path)
    assert f"architectures is '{name}'; expected one of LlamaForCausalLM" in message and why in message


def test_sizes_that_the_engine_needs_are_asked_for_by_key(
    family: Callable[[str], Any], tmp_path: Path
) -> None:
    config = json.loads((family("opt").path / "config.json").read_text())
    del config["max_position_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "no max_position_embeddings" in complaint(tmp_path)


def test_tensors_that_do_not_fit_are_named(family: Callable[[str], Any], tmp_path: Path) -> None:
    source, name = family("cohere2").path, "model.layers.1.mlp.up_proj.weight"
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors")
    wrong = {
        "missing": {key: tensor for key, tensor in tensors.items() if key != name},
        "unexpected": tensors | {"model.layers.1.extra": torch.zeros(1)},
        "mismatched": tensors | {name: torch.zeros(3, 4)},
    }
    for kind, changed in wrong.items():
        save_file(changed, tmp_path / "model.safetensors")
        message = complaint(tmp_path)
        assert kind in message and ("layers.1.extra" if kind == "unexpected" else name) in message


def test_what_modelling_code_raises_is_a_complaint_about_the_checkpoint(tmp_path: Path) -> None:
    """An XMOD wants to be told a language with every call."""
    message = complaint(save(tmp_path, "Xmod", is_decoder=True))
    assert "XmodForCausalLM cannot run in pages: ValueError: Input language unknown" in message


def test_code_in_a_checkpoint_is_never_run(family: Callable[[str], Any], tmp_path: Path) -> None:
    config = json.loads((family("opt").path / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "modeling.py").write_text("raise SystemExit('this ran')")
    assert "never run" in complaint(tmp_path)


def answering(change: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Attention over pages that is asked something else: `change` takes and returns its arguments."""
    answer = PagedStep.answer

    def answer_otherwise(self: PagedStep, *arguments: Any) -> torch.Tensor:
        return answer(self, *change(*arguments))

    return answer_otherwise


BROKEN: dict[str, Callable[..., Any]] = {
    "sequences_mixed_up": lambda layer, q, k, v, options: (layer, q.flip(0), k, v, options),
    "values_of_a_neighbour": lambda layer, q, k, v, options: (layer, q, k, v.roll(1, 0), options),
    "layers_share_a_cache": lambda _, q, k, v, options: (0, q, k, v, options),
    "heads_swapped": lambda layer, q, k, v, options: (layer, q, k.flip(1), v, options),
    "no_window": lambda layer, q, k, v, options: (layer, q, k, v, replace(options, window=None)),
    "no_softcap": lambda layer, q, k, v, options: (layer, q, k, v, replace(options, softcap=None)),
    "another_scale": lambda layer, q, k, v, options: (layer, q, k, v, replace(options, scale=0.3)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("how", BROKEN)
def test_a_model_that_computes_something_else_in_pages_does_not_pass_the_proof(
    family: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, how: str, dtype: str
) -> None:
    monkeypatch.setattr(PagedStep, "answer", answering(BROKEN[how]))
    with pytest.raises(CheckpointError, match="VaultGemmaForCausalLM computes something else in pages"):
        family("vaultgemma").load(dtype)
