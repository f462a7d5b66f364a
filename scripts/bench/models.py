"""Checkpoints of random weights that suit the benchmarks, made on first use and kept in the user's cache folder.

What a benchmark measures depends on the shape of a model, not on what it has learned. The packaged demo model is too
short for long prompts.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from pageant.scripts.engine_options import DEMO_MODEL

SHAPES: dict[str, dict[str, Any]] = {
    "small-long": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 65_536,
        "vocab_size": 4_096,
        "tie_word_embeddings": True,
    },
    "small-deep": {
        "hidden_size": 384,
        "intermediate_size": 1152,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 4_096,
        "vocab_size": 4_096,
        "tie_word_embeddings": True,
    },
    "small-wide": {
        "hidden_size": 640,
        "intermediate_size": 1920,
        "num_hidden_layers": 10,
        "num_attention_heads": 10,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 4_096,
        "vocab_size": 4_096,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
}
SHAPES["qwen3-0.6b-layers"] = SHAPES["qwen3-0.6b"] | {"vocab_size": 16_384}
"""Qwen 3 configurations by name; the last has the layers of the one before, and a small vocabulary."""


def suit(engine: dict[str, Any], shape: str) -> dict[str, Any]:
    """Return engine options with a model of this shape, where the user named no model (the demo is the default)."""
    if engine.get("model") != str(DEMO_MODEL):
        return engine
    return {**engine, "model": str(checkpoint(shape))}


def checkpoint(shape: str, cache: Path | None = None) -> Path:
    """Return the folder of a bfloat16 checkpoint of that shape, with the demo's tokenizer; make it where it is missing.

    Args:
        cache: where such folders are kept; the user's cache folder where None.
    """
    path = (cache or cache_folder()) / shape
    if (path / "config.json").exists():
        return path
    print(f"making a model of random weights, {shape}, in {path} (once)", file=sys.stderr, flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    # It appears whole or not at all: a benchmark may be interrupted, or run beside another.
    with tempfile.TemporaryDirectory(dir=path.parent) as made:
        _save(Path(made) / shape, SHAPES[shape])
        if not path.exists():
            (Path(made) / shape).rename(path)
    return path


def add_tokenizer(path: Path) -> None:
    """Give a checkpoint's folder the demo's tokenizer."""
    with resources.as_file(resources.files("pageant.models") / "demo") as demo:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(demo / name, path / name)


def cache_folder() -> Path:
    """Return the folder in which benchmarks keep the models that they make."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pageant" / "bench-models"


def _save(path: Path, shape: dict[str, Any]) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model: Any = Qwen3ForCausalLM(Qwen3Config(**shape, dtype=torch.bfloat16))
    finally:
        torch.set_default_dtype(before)
    model.save_pretrained(path)
    add_tokenizer(path)
