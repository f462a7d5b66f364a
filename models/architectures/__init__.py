"""The architectures that this engine knows, each a short file.

To add one, write a file that maps its config.json to a `DecoderSpec` and its tensor names to `Names`, and
list it here. `docs/adding-an-architecture.md` says how; `llama.py` is the pattern, and `reading.py`,
`rope.py`, `moe.py` and `common.py` have what families share.
"""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures import (
    bamba,
    bert,
    deepseek_v2,
    deepseek_v3,
    falcon_h1,
    gemma,
    gemma2,
    gemma3,
    glm4_moe,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    granite_hybrid,
    lfm2,
    llama,
    minimax_m2,
    mistral,
    mixtral,
    modernbert,
    nemotron_h,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_5,
    qwen3_moe,
    qwen3_next,
    roberta,
    smollm3,
    starcoder2,
    whisper,
    with_images,
)
from pageant.models.architectures.common import Architecture
from pageant.models.config import Config
from pageant.models.errors import CheckpointError
from pageant.protocol.errors import TopologyError
from pageant.protocol.plugins import load_plugin

__all__ = [
    "ARCHITECTURES",
    "ENCODERS",
    "WITH_AUDIO",
    "WITH_IMAGES",
    "Architecture",
    "find",
    "find_headless",
    "known",
]

_FAMILIES = (
    *(llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, gemma, gemma2, gemma3),
    *(phi3, olmo2, olmo3, granite, smollm3, gpt2, gpt_neox, gpt_oss, starcoder2),
    *(glm4_moe, minimax_m2, deepseek_v2, deepseek_v3, qwen3_next, qwen3_5),
    *(lfm2, granite_hybrid, bamba, falcon_h1, nemotron_h),
)
ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (*(family.ARCHITECTURE for family in _FAMILIES), qwen3_5.MIXTURE, lfm2.MIXTURE)
}
ENCODERS: dict[str, Architecture] = {
    encoder.name: encoder
    for encoder in (bert.ARCHITECTURE, roberta.ARCHITECTURE, roberta.XLM_ROBERTA, modernbert.ARCHITECTURE)
}
WITH_IMAGES: dict[str, Architecture] = with_images.ARCHITECTURES
"""Decoders of models that see."""
WITH_AUDIO: dict[str, Architecture] = {whisper.ARCHITECTURE.name: whisper.ARCHITECTURE}
"""Decoders of models that hear."""

_KINDS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForMaskedLM",
    "ForCausalLM",
    "LMHeadModel",
    "Model",
)


def find(config: Config) -> Architecture | None:
    """Return the architecture that a config.json names, ours or a plugin's; None for one that is not known here.

    Raises CheckpointError when it names none, and TopologyError for a plugin that cannot be loaded.
    """
    return known(_name(config))


def known(name: str) -> Architecture | None:
    """Return the architecture of that name: ours, or that of a plugin, whose entry point bears the name."""
    ours = ARCHITECTURES.get(name) or WITH_IMAGES.get(name) or WITH_AUDIO.get(name)
    if ours is not None:
        return ours
    added = load_plugin("architectures", name)
    if added is not None and not isinstance(added, Architecture):
        raise TopologyError(
            f"plugin {name!r}",
            f"found a {type(added).__name__}; expected an Architecture, as {name} is to be",
        )
    return added


def _name(config: Config) -> str:
    names = config.texts("architectures")
    if not names:
        names_known = ", ".join(ARCHITECTURES)
        raise CheckpointError(
            config.path,
            "no architectures",
            f"one of {names_known}",
            'Add it, as in "architectures": ["..."].',
        )
    return names[0]


def find_headless(config: Config) -> Architecture | None:
    """Return the architecture that a config.json names without whatever head it has, or None.

    A decoder is found by the names of all classes that transformers has for it; so is an encoder.
    """
    name = _name(config)
    family = next((name.removesuffix(kind) for kind in _KINDS if name.endswith(kind)), name)
    encoder = ENCODERS.get(f"{family}Model")
    decoder = next((one for kind in _KINDS if (one := known(family + kind))), None)
    return encoder or (None if decoder is None else _headless(decoder))


def _headless(decoder: Architecture) -> Architecture:
    return Architecture(
        decoder.name,
        lambda config: replace(decoder.spec(config), has_head=False),
        decoder.names.without_prefix(),
    )
