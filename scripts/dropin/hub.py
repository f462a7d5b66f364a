"""A cache of the Hugging Face Hub with small stand-ins for the models that vLLM's examples and tests name.

A stand-in has the architecture, the context length and the kind of tokenizer of the model that it stands for, and
random weights. With `HF_HOME` at the cache and `HF_HUB_OFFLINE=1`, a script's own model names work as they are.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pageant.scripts.dropin.quantized import quantize
from pageant.scripts.dropin.scripted import CALLING_TEMPLATE, LISTING_TEMPLATE, THINKING_TEMPLATE
from pageant.scripts.puppet import make_puppet

EDITION = 4
"""Raised when a stand-in is made in another way, so that none is taken from a cache of before."""
_SMALL = {
    "vocab_size": 4_096,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_OPT = {**_SMALL, "ffn_dim": 128, "word_embed_proj_dim": 64, "intermediate_size": None, "head_dim": None}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class StandIn:
    """A stand-in, and how it is made.

    Attributes:
        names: a regular expression that the whole hub id matches.
        make: writes the checkpoint into a folder.
    """

    names: str
    make: Callable[[Path], None]


def _decoder(model_type: str, **config: Any) -> Callable[[Path], None]:
    """A decoder with random weights, made by transformers."""

    def make(folder: Path) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(0)
        base = _OPT if model_type == "opt" else _SMALL
        settings = {name: value for name, value in {**base, **config}.items() if value is not None}
        made = AutoConfig.for_model(model_type, **settings, dtype=torch.float32)
        models: Any = AutoModelForCausalLM
        model = models.from_config(made)
        model.generation_config.eos_token_id = 2
        model.save_pretrained(folder)
        _write_tokenizer(folder)

    return make


LLAMA = _decoder("llama", max_position_embeddings=131_072)


def _quantized(method: str) -> Callable[[Path], None]:
    """A decoder that comes quantised."""

    def make(folder: Path) -> None:
        LLAMA(folder)
        quantize(folder, method)

    return make


def _write_tokenizer(folder: Path) -> None:
    with resources.as_file(resources.files("pageant.models") / "demo") as demo:
        shutil.copy(demo / "tokenizer.json", folder)
        settings = json.loads((demo / "tokenizer_config.json").read_text())
    settings |= {"model_max_length": 1_000_000, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def _other(architecture: str, model_type: str = "other") -> Callable[[Path], None]:
    """A checkpoint that says its architecture, and has nothing else that could be loaded."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        said = {"architectures": [architecture], "model_type": model_type, **_SMALL}
        (folder / "config.json").write_text(json.dumps({**said, "max_position_embeddings": 512}))
        _write_tokenizer(folder)

    return make


def _adapter(rank: int) -> Callable[[Path], None]:
    """An adapter for the stand-ins of `_decoder`, in PEFT's layout."""

    def make(folder: Path) -> None:
        import torch
        from safetensors.torch import save_file

        folder.mkdir(parents=True)
        settings = {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": rank,
            "target_modules": ["q_proj", "v_proj"],
        }
        (folder / "adapter_config.json").write_text(json.dumps(settings))
        generator = torch.Generator().manual_seed(0)
        tensors = {}
        for layer in range(2):
            for name, rows in (("q_proj", 64), ("v_proj", 32)):
                path = f"base_model.model.model.layers.{layer}.self_attn.{name}"
                tensors[f"{path}.lora_A.weight"] = torch.randn(rank, 64, generator=generator) * 0.1
                tensors[f"{path}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) * 0.1
        save_file(tensors, folder / "adapter_model.safetensors")
        _write_tokenizer(folder)

    return make


def _scripted(template: str) -> Callable[[Path], None]:
    """A model that says what its chat template decides."""

    def make(folder: Path) -> None:
        make_puppet(folder, template)

    return make


STAND_INS = (
    StandIn(r"mistralai/Mistral-7B-Instruct-v0\.3", _scripted(LISTING_TEMPLATE)),
    StandIn(r"NousResearch/Hermes-2-Pro.*|Salesforce/.*xLAM.*", _scripted(CALLING_TEMPLATE)),
    StandIn(r"Qwen/QwQ-32B|deepseek-ai/DeepSeek-R1-Distill-Qwen-1\.5B", _scripted(THINKING_TEMPLATE)),
    StandIn(r"Qwen/Qwen3-8B|Qwen/Qwen3-1\.7B", _scripted(THINKING_TEMPLATE)),
    StandIn(r"facebook/opt-.*", _decoder("opt", max_position_embeddings=2_048)),
    StandIn(r"lmsys/longchat-13b-16k", _decoder("llama", max_position_embeddings=16_384)),
    StandIn(r"(?i:.*lora.*|.*text2sql-spider|.*/self_cognition_.*)", _adapter(8)),
    StandIn(r"ibm-ai-platform/.*-accelerator", _other("MLPSpeculatorPreTrainedModel", "mlp_speculator")),
    StandIn(r"RedHatAI/gpt-oss-20b-speculator.eagle3", _decoder("llama", max_position_embeddings=4_096)),
    StandIn(r"(?!.*(DeepSeek|Qwen3\.5|Scout|Nemotron)).*/.*AWQ.*", _quantized("awq")),
    StandIn(r"(?!.*(DeepSeek|Qwen3\.5|Scout|Nemotron)).*/.*GPTQ.*", _quantized("gptq")),
    StandIn(r"(?!.*(DeepSeek|Qwen3\.5|Scout|Nemotron|-A3B)).*/.*(?i:FP8).*", _quantized("fp8")),
    StandIn(
        r"(?i:.*(bge|e5-|/e5|rerank|colbert|embed|minilm|apeach|reward|teach).*)", _other("BertModel", "bert")
    ),
    StandIn(
        r"(?i:.*(-vl|vlm|vision|llava|omni|audio|multimodal|gemma-3n|gemma-4|gemma4|colpali|siglip|ultravox).*)",
        _other("VisionForConditionalGeneration"),
    ),
    StandIn(
        r"(?i:.*(whisper|voxtral|asr|speech|transcribe|prithvi).*)", _other("SpeechForConditionalGeneration")
    ),
    StandIn(
        r".*(Qwen3\.5|Qwen3-Next|granite-4|Nemotron|DeepSeek-V|DeepSeek-R1|DeepSeek-Coder-V2|Kimi|gpt-oss|internlm2).*",
        _other("HybridForCausalLM"),
    ),
    StandIn(r"Qwen/Qwen3-\d.*", _decoder("qwen3", max_position_embeddings=40_960)),
    StandIn(r"Qwen/Qwen2.*", _decoder("qwen2", max_position_embeddings=32_768)),
    StandIn(r".*/zephyr-7b-beta|mistralai/.*", _decoder("mistral", max_position_embeddings=32_768)),
    StandIn(r".*mixtral.*", _decoder("mixtral", max_position_embeddings=32_768, **_EXPERTS)),
    StandIn(r"ibm-research/PowerMoE-3b", _decoder("granitemoe", max_position_embeddings=4_096, **_EXPERTS)),
    StandIn(r"EleutherAI/pythia.*", _decoder("gpt_neox", max_position_embeddings=2_048)),
    StandIn(r".*/gpt2", _decoder("gpt2", n_positions=1_024, num_key_value_heads=None, head_dim=None)),
    StandIn(r"ibm-granite/granite-3.*", _decoder("granite", max_position_embeddings=4_096)),
    StandIn(r".*/TinyLlama.*|JackFram/llama.*|hmellor/.*", _decoder("llama", max_position_embeddings=2_048)),
    StandIn(r"(?i:.*llama.*|.*smollm.*|.*toolace.*)", LLAMA),
)
"""The first whose expression matches a name stands for it."""


class Hub:
    """The cache: a folder for `HF_HOME`, filled as names are asked for."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def variables(self) -> dict[str, str]:
        """Environment variables under which the cache is all that there is."""
        return {"HF_HOME": str(self.home), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

    def add(self, name: str) -> Path | None:
        """Return the folder of a hub id's stand-in, made where it is missing; None where nothing stands for it."""
        one = next((one for one in STAND_INS if re.fullmatch(one.names, name)), None)
        if one is None:
            return None
        commit = hashlib.sha1(f"{EDITION} {one.names}".encode()).hexdigest()
        folder = self.home / "hub" / f"models--{name.replace('/', '--')}"
        snapshot, made = folder / "snapshots" / commit, self.home / "stand-ins" / commit
        if not made.is_dir():
            partly = made.with_suffix(".partly")
            shutil.rmtree(partly, ignore_errors=True)
            one.make(partly)
            partly.rename(made)
        if not snapshot.is_dir():
            shutil.copytree(made, snapshot)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
        return snapshot

    def add_all(self, source: str) -> list[str]:
        """Add a stand-in for each hub id in a script's text. Return those for which there is none."""
        names = sorted(set(re.findall(r"""["'\s]([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)["'\s]""", source)))
        return [name for name in names if self.add(name) is None]
