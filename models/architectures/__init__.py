"""The architectures that this engine knows, each a short file.

To add one, write a file that maps its config.json to a `DecoderSpec` and its tensor names to `Names`, and
list it here. `docs/adding-an-architecture.md` says how; `llama.py` is the pattern, and `reading.py`,
`rope.py`, `moe.py` and `common.py` have what families share.
"""

from __future__ import annotations

from pageant.models.architectures import (
    gemma,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    smollm3,
    starcoder2,
)
from pageant.models.architectures.common import Architecture
from pageant.models.config import Config
from pageant.models.errors import CheckpointError

__all__ = ["ARCHITECTURES", "Architecture", "find"]

_FAMILIES = (
    *(llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, gemma, gemma2, gemma3),
    *(phi3, olmo2, olmo3, granite, smollm3, gpt2, gpt_neox, starcoder2),
)
ARCHITECTURES: dict[str, Architecture] = {
    family.ARCHITECTURE.name: family.ARCHITECTURE for family in _FAMILIES
}


def find(config: Config) -> Architecture | None:
    """Return the architecture that a config.json names, or None for one that is not known here.

    Raises CheckpointError when it names none.
    """
    names = config.texts("architectures")
    if not names:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(
            config.path, "no architectures", f"one of {known}", 'Add it, as in "architectures": ["..."].'
        )
    return ARCHITECTURES.get(names[0])
