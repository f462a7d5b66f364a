"""The architectures that this engine knows, each a short file.

To add one, write a file that maps its config.json to a `DecoderSpec` and its tensor names to `Places`
(`llama.py` is the pattern, `common.py` has what families share), and list it here.
"""

from __future__ import annotations

from pageant.models.architectures import llama, mistral, qwen2, qwen3
from pageant.models.architectures.common import Architecture
from pageant.models.config import Config
from pageant.models.errors import CheckpointError

__all__ = ["ARCHITECTURES", "Architecture", "find"]

ARCHITECTURES: dict[str, Architecture] = {
    module.ARCHITECTURE.name: module.ARCHITECTURE for module in (llama, mistral, qwen2, qwen3)
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
