"""Families of models that hear, as far as their configurations tell. Knows no torch."""

from __future__ import annotations

from typing import Any

from pageant.models import architectures
from pageant.models.checkpoint import Checkpoint
from pageant.models.config import Config, read_json
from pageant.models.errors import CheckpointError
from pageant.protocol.hearing import AudioInputs

__all__ = ["RATE", "read_audio"]

RATE = 16_000
"""Samples of a second, as every Whisper hears them."""
_HOP = 160
_STRIDE = 2
"""Frames of a row: the encoder's second convolution takes every other one."""
_TIMESTAMP_SECONDS = 0.02


def read_audio(checkpoint: Checkpoint) -> AudioInputs | None:
    """Return the sounds that a checkpoint's model takes; None where it does not hear.

    Raises:
        CheckpointError: its configuration makes no sense, or is not supported.
    """
    architecture = checkpoint.architecture
    if architecture is None or architecture.name not in architectures.WITH_AUDIO:
        return None
    config = Config(checkpoint.config, checkpoint.path / "config.json")
    generation = Config(
        {**_of_older(checkpoint.config), **checkpoint.generation_config},
        checkpoint.path / "generation_config.json",
    )
    _check_features(checkpoint, config)
    (end,) = checkpoint.eos_token_ids or (None,)
    if end is None:
        raise generation.wrong("eos_token_id", None, "the token that ends a text")
    return AudioInputs(
        window_frames=config.count("max_source_positions") * _STRIDE,
        frame_seconds=_HOP / RATE,
        timestamp_seconds=_TIMESTAMP_SECONDS,
        start=_token(generation, "decoder_start_token_id", config),
        end=end,
        languages={
            name.strip("<|>"): token for name, token in _tokens(generation, "lang_to_id", config).items()
        },
        tasks=_tokens(generation, "task_to_id", config),
        no_timestamps=_maybe(generation, "no_timestamps_token_id", config),
        previous=_maybe(generation, "prev_sot_token_id", config),
        suppressed=_ids(generation, "suppress_tokens", config),
        first_suppressed=_ids(generation, "begin_suppress_tokens", config),
        initial_timestamp_most=generation.count("max_initial_timestamp_index", minimum=0)
        if "max_initial_timestamp_index" in generation
        else None,
        alignment_heads=_heads(generation, config),
        filter_width=_filter_width(config),
    )


def _of_older(config: Any) -> dict[str, Any]:
    """Return what older checkpoints say of generation in config.json."""
    keys = ("decoder_start_token_id", "suppress_tokens", "begin_suppress_tokens")
    return {key: config[key] for key in keys if config.get(key) is not None}


def _check_features(checkpoint: Checkpoint, config: Config) -> None:
    path = checkpoint.path / "preprocessor_config.json"
    if not path.is_file():
        raise CheckpointError(
            checkpoint.path,
            "no preprocessor_config.json",
            "one that says how sounds become features",
            "Download it.",
        )
    features = Config(read_json(path), path)
    bins = config.count("num_mel_bins", 80)
    if (found := features.count("feature_size", 80)) != bins:
        raise features.wrong("feature_size", found, f"{bins}, num_mel_bins of config.json")
    for key, expected in (("sampling_rate", RATE), ("hop_length", _HOP)):
        features.refuse(key, expected, "Other sounds are not implemented.")


def _heads(generation: Config, config: Config) -> tuple[tuple[int, int], ...]:
    """Return the layers and heads by whose weights tokens are found in a sound, which may be missing."""
    key, found = "alignment_heads", generation.values.get("alignment_heads") or []
    layers, heads = config.count("decoder_layers"), config.count("decoder_attention_heads")
    expected = f"a list of pairs: a layer below {layers}, and a head below {heads}"
    if not isinstance(found, list):
        raise generation.wrong(key, found, expected)
    for one in found:
        whole = isinstance(one, list) and len(one) == 2 and all(type(number) is int for number in one)
        if not whole or not (0 <= one[0] < layers and 0 <= one[1] < heads):
            raise generation.wrong(key, one, expected)
    return tuple((layer, head) for layer, head in found)


def _filter_width(config: Config) -> int:
    width = config.count("median_filter_width", 7)
    if width % 2 == 0:
        raise config.wrong("median_filter_width", width, "an odd number")
    return width


def _token(generation: Config, key: str, config: Config) -> int:
    """Return a token of the model's."""
    token, size = generation.count(key, minimum=0), config.count("vocab_size")
    if token >= size:
        raise generation.wrong(key, token, f"a token below {size}")
    return token


def _maybe(generation: Config, key: str, config: Config) -> int | None:
    return _token(generation, key, config) if key in generation else None


def _ids(generation: Config, key: str, config: Config) -> tuple[int, ...]:
    """Return a list of tokens, which may be missing."""
    found, size = generation.values.get(key) or [], config.count("vocab_size")
    if not isinstance(found, list) or not all(isinstance(one, int) and one < size for one in found):
        raise generation.wrong(key, found, f"a list of tokens below {size}")
    return tuple(one for one in found if one >= 0)


def _tokens(generation: Config, key: str, config: Config) -> dict[str, int]:
    section = generation.section(key)
    return {name: _token(section, name, config) for name in section.values}
