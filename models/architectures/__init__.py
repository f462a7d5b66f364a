"""The architectures that this engine knows, each a short file.

To add one, write a file that maps its config.json to a `DecoderSpec` and its tensor names to `Names`, and
list it here. `docs/adding-an-architecture.md` says how; `llama.py` is the pattern, and `reading.py`,
`rope.py`, `moe.py` and `common.py` have what families share.
"""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures import (
    bert,
    gemma,
    gemma2,
    gemma3,
    glm4_moe,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    minimax_m2,
    mistral,
    mixtral,
    modernbert,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    roberta,
    smollm3,
    starcoder2,
)
from pageant.models.architectures.common import Architecture
from pageant.models.config import Config
from pageant.models.errors import CheckpointError

__all__ = ["ARCHITECTURES", "ENCODERS", "Architecture", "find", "find_headless"]

_FAMILIES = (
    *(llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, gemma, gemma2, gemma3),
    *(phi3, olmo2, olmo3, granite, smollm3, gpt2, gpt_neox, gpt_oss, starcoder2),
    *(glm4_moe, minimax_m2),
)
ARCHITECTURES: dict[str, Architecture] = {
    family.ARCHITECTURE.name: family.ARCHITECTURE for family in _FAMILIES
}
ENCODERS: dict[str, Architecture] = {
    encoder.name: encoder
    for encoder in (bert.ARCHITECTURE, roberta.ARCHITECTURE, roberta.XLM_ROBERTA, modernbert.ARCHITECTURE)
}

_KINDS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForMaskedLM",
    "ForCausalLM",
    "LMHeadModel",
    "Model",
)


def find(config: Config) -> Architecture | None:
    """Return the architecture that a config.json names, or None for one that is not known here.

    Raises CheckpointError when it names none.
    """
    return ARCHITECTURES.get(_name(config))


def _name(config: Config) -> str:
    names = config.texts("architectures")
    if not names:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(
            config.path, "no architectures", f"one of {known}", 'Add it, as in "architectures": ["..."].'
        )
    return names[0]


def find_headless(config: Config) -> Architecture | None:
    """Return the architecture that a config.json names without whatever head it has, or None.

    A decoder is found by the names of all classes that transformers has for it; so is an encoder.
    """
    name = _name(config)
    family = next((name.removesuffix(kind) for kind in _KINDS if name.endswith(kind)), name)
    encoder = ENCODERS.get(f"{family}Model")
    decoder = next((known for kind in _KINDS if (known := ARCHITECTURES.get(family + kind))), None)
    return encoder or (None if decoder is None else _headless(decoder))


def _headless(decoder: Architecture) -> Architecture:
    return Architecture(
        decoder.name,
        lambda config: replace(decoder.spec(config), has_head=False),
        decoder.names.without_prefix(),
    )
