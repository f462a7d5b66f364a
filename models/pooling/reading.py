"""Reading how a checkpoint pools. What is not said is refused, and never a default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pageant.models.config import Config, read_json
from pageant.models.errors import CheckpointError
from pageant.models.pooling.classifiers import read_classifier, read_scores
from pageant.models.pooling.sentence_transformers import Modules, read_modules, read_pool_kind, read_prompts
from pageant.models.pooling.spec import PoolingSpec
from pageant.models.tensor_files import TensorInfo

__all__ = ["read_pooling"]

_SAY_IT = 'Say how it is pooled: pooler_config: {"pooling_type": "MEAN"}, or CLS, or LAST.'


def read_pooling(
    config: Config,
    folder: Path,
    task: Literal["embed", "classify"],
    hidden_size: int,
    tensors: Mapping[str, TensorInfo],
) -> PoolingSpec:
    """Return how a checkpoint's hidden states become embeddings or scores.

    Args:
        tensors: by the names that they are saved by.

    Raises:
        CheckpointError: it does not say, or says what is not implemented or makes no sense.
    """
    prompts = read_prompts(folder)
    if task == "classify":
        head = read_classifier(config, tensors, lambda tokens: _token_ids(folder, tokens))
        two_way = "classifier_from_token" in config and len(head.labels) == 1
        return PoolingSpec(
            task="classify",
            pool=head.pool,
            size=len(head.labels),
            steps=head.steps,
            labels=head.labels,
            scores="sigmoid" if two_way else read_scores(config, len(head.labels)),
            lowercases=prompts.lowercases,
            max_length=prompts.max_length,
        )
    modules = _embedding_modules(config, folder, hidden_size)
    return PoolingSpec(
        task="embed",
        pool=modules.pool,
        size=modules.size,
        steps=modules.steps,
        normalises=modules.normalises,
        dimensions=_dimensions(config, modules.size),
        prompts=prompts.by_name,
        default_prompt=prompts.default,
        lowercases=prompts.lowercases,
        max_length=prompts.max_length,
    )


def _embedding_modules(config: Config, folder: Path, hidden_size: int) -> Modules:
    said = config.section("pooler_config")
    for key in said.values:
        if key not in ("pooling_type", "normalize"):
            raise said.wrong(key, said.values[key], "pooling_type or normalize", "This key is not known.")
    modules = None if "pooling_type" in said else read_modules(folder, hidden_size)
    if "pooling_type" in said:
        named = {"pooling_mode": said.text("pooling_type").lower()}
        pool = read_pool_kind(Config(named, config.path, "pooler_config."))
        normalises = said.flag("normalize", True)
        return Modules(pool, (), normalises, hidden_size)
    if modules is None:
        raise CheckpointError(folder, "no modules.json, and no pooler_config", "how the model pools", _SAY_IT)
    if "normalize" in said:
        return Modules(modules.pool, modules.steps, said.flag("normalize"), modules.size)
    return modules


def _dimensions(config: Config, size: int) -> tuple[int, ...] | None:
    """Return the widths that embeddings may be cut to; () is any."""
    listed = config.counts("matryoshka_dimensions")
    if listed:
        if not all(1 <= one <= size for one in listed):
            raise config.wrong("matryoshka_dimensions", list(listed), f"numbers from 1 to {size}")
        return listed
    return () if config.flag("is_matryoshka") else None


def _token_ids(folder: Path, tokens: tuple[str, ...]) -> tuple[int, ...]:
    """Return the ids of tokens by tokenizer.json."""
    path = folder / "tokenizer.json"
    content = read_json(path) if path.is_file() else {}
    vocabulary = dict(content.get("model", {}).get("vocab", {}))
    vocabulary |= {added["content"]: added["id"] for added in content.get("added_tokens", ())}
    missing = [token for token in tokens if token not in vocabulary]
    if missing:
        raise CheckpointError(
            path, f"no token {json.dumps(missing[0])}", "the tokens of the classifier", "Name others."
        )
    return tuple(vocabulary[token] for token in tokens)
