"""The architectures that this engine knows, each a short file.

To add one, write a file that maps its config.json to a `DecoderSpec` and its tensor names to `Names`, and
list it here. `docs/adding-an-architecture.md` says how; `llama.py` is the pattern, and `reading.py`,
`rope.py`, `moe.py` and `common.py` have what families share.
"""

from __future__ import annotations

from pageant.models.architectures import (
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    starcoder2,
)
from pageant.models.architectures.common import Architecture
from pageant.models.config import Config
from pageant.models.errors import CheckpointError

__all__ = ["ARCHITECTURES", "Architecture", "find"]

_FAMILIES = (
    *(llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, gemma2, gemma3),
    *(phi3, olmo2, gpt2, gpt_neox, starcoder2),
)
ARCHITECTURES: dict[str, Architecture] = {
    family.ARCHITECTURE.name: family.ARCHITECTURE for family in _FAMILIES
}


def find(config: Config) -> Architecture:
    """Return the architecture that a config.json names.

    Raises CheckpointError when it names none, or one that is not known.
    """
    known = ", ".join(ARCHITECTURES)
    names = config.texts("architectures")
    if not names:
        raise CheckpointError(
            config.path, "no architectures", f"one of {known}", 'Add it, as in "architectures": ["..."].'
        )
    if names[0] not in ARCHITECTURES:
        raise config.wrong(
            "architectures",
            names[0],
            f"one of {known}",
            "Use one of these, or add a file to models/architectures.",
        )
    return ARCHITECTURES[names[0]]
