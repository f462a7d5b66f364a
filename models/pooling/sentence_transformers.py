"""The folders of sentence-transformers: modules.json, and a folder for each module.

Of the modules, the first is the model itself and the second its pooling; dense layers and normalisation may follow, in
any order. What is not known is refused: a wrong pooling gives embeddings that look right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pageant.models.config import Config, read_json
from pageant.models.errors import CheckpointError
from pageant.models.pooling.purpose import MODULES
from pageant.models.pooling.spec import Activation, Affine, Normalise, PoolKind, Standardise, Step
from pageant.models.tensor_files import read_header

__all__ = ["Modules", "Prompts", "module_folders", "read_modules", "read_pool_kind", "read_prompts"]

_KINDS: dict[str, PoolKind] = {
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
    "last": "last",
    "all": "all",
}
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_ACTIVATIONS: dict[str, Activation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}
_ONE_FILE = "model.safetensors"
_IMPLEMENTED = "Only pooling by cls, mean or lasttoken is implemented."


@dataclass(frozen=True, slots=True)
class Modules:
    """Modules that follow the model."""

    pool: PoolKind
    steps: tuple[Step, ...]
    normalises: bool
    size: int


@dataclass(frozen=True, slots=True)
class Prompts:
    """Beginnings of texts, and bounds of their lengths."""

    by_name: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    lowercases: bool = False
    max_length: int | None = None


def read_modules(folder: Path, hidden_size: int) -> Modules | None:
    """Return the modules after the model in a folder of sentence-transformers; None for another folder.

    Raises:
        CheckpointError: a module is not known, does not fit the one before, or is missing.
    """
    path = folder / MODULES
    if not path.is_file():
        return None
    pool: PoolKind | None = None
    steps: list[Step] = []
    size = hidden_size
    for kind, part in _listed(path):
        if kind == "Transformer":
            continue
        config = Config(_content(folder, part), folder / part / "config.json")
        if kind == "Pooling":
            if steps or pool is not None:
                raise CheckpointError(
                    path,
                    "a Pooling module behind others",
                    "Pooling right after Transformer",
                    "Another order is not implemented.",
                )
            pool = read_pool_kind(config)
            _check_width(config, hidden_size, "word_embedding_dimension", "embedding_dimension")
        elif kind == "Dense":
            steps.append(_read_dense(config, folder / part, size))
            size = config.count("out_features")
        elif kind == "LayerNorm":
            steps.append(_read_norm(config, folder / part, size))
        elif kind == "Normalize":
            steps.append(Normalise())
        else:
            raise CheckpointError(
                path,
                f"the module {kind}",
                "Transformer, Pooling, Dense, LayerNorm or Normalize",
                "This module is not implemented.",
            )
    if pool is None:
        raise CheckpointError(
            path, "no Pooling module", "one", 'Say it: pooler_config: {"pooling_type": ...}.'
        )
    normalises = bool(steps) and isinstance(steps[-1], Normalise)
    return Modules(pool, tuple(steps[:-1] if normalises else steps), normalises, size)


def read_pool_kind(config: Config) -> PoolKind:
    """Read how a pooling module pools: one of its flags is true, or its `pooling_mode` says it.

    Raises:
        CheckpointError: it says nothing, several things at once, or what is not implemented.
    """
    if "pooling_mode" in config:
        said = config.values["pooling_mode"]
        modes = [said] if isinstance(said, str) else list(said) if isinstance(said, list) else [repr(said)]
        key: str = "pooling_mode"
    else:
        modes = [mode for flag, mode in _FLAGS.items() if config.flag(flag)]
        key = "the pooling_mode flags"
    if len(modes) != 1 or modes[0] not in _KINDS:
        found = ", ".join(map(str, modes)) or "none"
        raise config.wrong(key, found, f"one of {', '.join(_KINDS)}", _IMPLEMENTED)
    if config.values.get("include_prompt") is False:
        raise config.wrong("include_prompt", False, "true", "Pooling without the prompt is not implemented.")
    return _KINDS[modes[0]]


def read_prompts(folder: Path) -> Prompts:
    """Return the prompts of a folder of sentence-transformers, if it has any."""
    found: dict[str, Any] = {}
    for name in ("config_sentence_transformers.json", "sentence_bert_config.json"):
        path = folder / name
        if path.is_file():
            found |= read_json(path)
    config = Config(found, folder / "config_sentence_transformers.json")
    prompts = config.section("prompts").values
    if not all(isinstance(text, str) for text in prompts.values()):
        raise config.wrong("prompts", prompts, "a text for each name")
    default = config.text("default_prompt_name", "")
    if default and default not in prompts:
        raise config.wrong("default_prompt_name", default, f"one of {', '.join(prompts)}")
    length = config.count("max_seq_length") if "max_seq_length" in config else None
    return Prompts(prompts, default or None, config.flag("do_lower_case"), length)


def module_folders(folder: Path) -> list[str]:
    """Return the names of the folders that modules have for themselves; none for another folder.

    Raises:
        CheckpointError: the list of modules is malformed.
    """
    path = folder / MODULES
    return [part for _, part in _listed(path) if part] if path.is_file() else []


def _listed(path: Path) -> list[tuple[str, str]]:
    """Return the class and the folder of each module, in order."""
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        return [(str(one["type"]).rpartition(".")[2], str(one["path"])) for one in modules]
    except (ValueError, OSError, TypeError, KeyError) as error:
        raise CheckpointError(path, f"{error!r}", "a list of modules", "Download it again.") from error


def _content(folder: Path, part: str) -> dict[str, Any]:
    if part and (Path(part).name != part or part == ".."):
        raise CheckpointError(
            folder / MODULES, f"the module folder {part!r}", "a folder beside it", "Correct it."
        )
    path = folder / part / "config.json"
    return read_json(path) if part and path.is_file() else {}


def _check_width(config: Config, width: int, *keys: str) -> None:
    for key in keys:
        if key in config and config.count(key) != width:
            raise config.wrong(key, config.count(key), f"{width}, the width of what comes before")


def _read_dense(config: Config, folder: Path, size: int) -> Affine:
    _check_width(config, size, "in_features")
    name = config.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise config.wrong("activation_function", name, f"one of {', '.join(_ACTIVATIONS)}")
    tensors = read_header(folder / _ONE_FILE)
    shape = config.count("out_features"), size
    weight = tensors.get("linear.weight")
    bias = tensors.get("linear.bias") if config.flag("bias", True) else None
    if weight is None or weight.shape != shape or (config.flag("bias", True) and bias is None):
        found = "none" if weight is None else f"{list(weight.shape)}"
        raise CheckpointError(
            folder / _ONE_FILE, f"linear.weight is {found}", f"{list(shape)}, and a bias if the module has one",
            "Check that config.json and the weights belong together.",
        )  # fmt: skip
    return Affine(weight=weight, bias=bias, activation=_ACTIVATIONS[name])


def _read_norm(config: Config, folder: Path, size: int) -> Standardise:
    _check_width(config, size, "dimension")
    tensors = read_header(folder / _ONE_FILE)
    if "norm.weight" not in tensors or "norm.bias" not in tensors:
        raise CheckpointError(
            folder / _ONE_FILE, "no norm.weight and norm.bias", "both", "Download it again."
        )
    return Standardise(weight=tensors["norm.weight"], bias=tensors["norm.bias"], eps=1e-5)
