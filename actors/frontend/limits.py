"""Limits of requests to a model, and the parameters of a request that brings none: those of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pageant.actors.frontend.prompts import Limits
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.protocol.checks import expected
from pageant.protocol.errors import BadRequest, TopologyError
from pageant.protocol.fronting import ServedModel
from pageant.protocol.sampling import SamplingParams

# Of generation_config.json, under our names. `do_sample` is passed over, as vLLM does: temperature says it.
_DEFAULTS = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")},
    "max_new_tokens": "max_tokens",
}


def limits_of(model: ServedModel) -> tuple[Limits, int | None]:
    """Return the limits of requests to a model, and the default length of answers, if the checkpoint sets one.

    Raises:
        TopologyError: a setting is out of range.
        CheckpointError: generation_config.json is invalid.
    """
    folder, most, config_from = Path(model.folder), model.max_logprobs, model.generation_config
    if isinstance(most, bool) or not isinstance(most, int) or most < -1:
        raise TopologyError("max_logprobs", f"found {most!r}; expected a number, or -1 for all")
    if config_from not in ("auto", "none"):
        raise TopologyError("generation_config", f"found {config_from!r}; expected auto or none")
    config = dict(Checkpoint(folder).generation_config) if config_from == "auto" else {}
    if model.generation_overrides:
        config |= model.generation_overrides
        _check_overrides(model)
    limits = Limits(
        *(model.vocab_size, model.max_model_len, most, _default_params(folder, config), model.adapters),
        has_tokenizer=model.tokenizer is not None,
        embeds_size=model.embeds_size,
        generates=model.generates,
        pooled=model.pooled,
        images=model.images,
        audio=model.audio,
    )
    return limits, config.get("max_new_tokens")


def _check_overrides(model: ServedModel) -> None:
    """Refuse what would change nothing."""
    for name in model.generation_overrides:
        if name not in _DEFAULTS and name != "do_sample":
            raise TopologyError(
                f"override_generation_config.{name}", f"no such key; {expected(name, _DEFAULTS)}"
            )
    try:
        _default_params(Path(model.folder), model.generation_overrides)
    except CheckpointError as error:
        raise TopologyError("override_generation_config", error.found) from None


def _default_params(path: Path, config: Mapping[str, Any]) -> SamplingParams:
    given = {ours: config[theirs] for theirs, ours in _DEFAULTS.items() if config.get(theirs) is not None}
    try:
        return SamplingParams(**given)
    except BadRequest as error:
        raise CheckpointError(
            path / "generation_config.json",
            str(error),
            "parameters that can be served",
            "Correct it, or set generation_config to none.",
        ) from None
