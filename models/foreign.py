"""Models that have no file in `architectures`, as far as they can be known without loading transformers.

Such a model runs on transformers' own modelling code, if that lets its attention be replaced. Whether it
does stands in the source of its class, which is read here as text: a front end imports no torch.
`fallback` tells for certain, when the model is loaded.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pageant.models.architectures import ARCHITECTURES
from pageant.models.config import Config
from pageant.models.spec import ModelSpec

__all__ = ["foreign_spec"]

_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_REPLACEABLE = "_supports_attention_backend = True"


def foreign_spec(config: Config) -> ModelSpec:
    """Read the sizes of a model for which there is no file in `architectures`.

    Raises CheckpointError when transformers does not have it either or does not let its attention be
    replaced, and when a size is missing.
    """
    name = config.texts("architectures")[0]
    lacks = _obstacle(name)
    if lacks is not None:
        raise config.wrong(
            "architectures",
            name,
            f"one of {', '.join(ARCHITECTURES)}, or one of transformers whose attention can be replaced",
            f"Here, {lacks}. Use one of these, or add a file to models/architectures.",
        )
    length = next((key for key in _LENGTHS if key in config), _LENGTHS[0])
    return ModelSpec(vocab_size=config.count("vocab_size"), max_model_len=config.count(length))


def _obstacle(name: str) -> str | None:
    """Return why a class of transformers cannot be run here, as far as its name and source say."""
    if not name.endswith(_CAUSAL):
        return "it is not a causal language model by its name"
    source = _modelling_code(name)
    if source is None:
        return "transformers does not have it"
    return None if _REPLACEABLE in source else "transformers fixes its attention"


def _modelling_code(name: str) -> str | None:
    """Return the source of the file of transformers that defines the class, or None."""
    found = importlib.util.find_spec("transformers")
    folders = found.submodule_search_locations if found is not None else None
    for folder in folders or ():
        for path in sorted(Path(folder, "models").glob("*/modeling_*.py")):
            source = path.read_text(encoding="utf-8")
            if f"\nclass {name}(" in source:
                return source
    return None
