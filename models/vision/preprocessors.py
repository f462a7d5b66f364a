"""Configurations of processors of images and videos, as far as all families have them alike."""

from __future__ import annotations

from typing import Any

from pageant.models.checkpoint import Checkpoint
from pageant.models.config import Config, read_json

__all__ = ["BICUBIC", "BILINEAR", "CLIP_MEAN", "CLIP_STD", "HALVES", "common", "preprocessor"]

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALVES = (0.5, 0.5, 0.5)
BILINEAR, BICUBIC = 2, 3
_WHOLE = "processor_config.json"


def preprocessor(
    checkpoint: Checkpoint,
    files: tuple[str, ...] = ("preprocessor_config.json", _WHOLE),
    part: str = "image_processor",
) -> Config:
    """Return the configuration of a processor; an empty one where the checkpoint has none.

    Args:
        files: that may have it; the first of them that there is counts.
        part: its section, which processor_config.json must have, and others may.
    """
    for name in files:
        path = checkpoint.path / name
        if path.is_file():
            values = read_json(path)
            section = values.get(part, values)
            if name != _WHOLE or part in values:
                return Config(section if isinstance(section, dict) else values, path)
    return Config({}, checkpoint.path / files[0])


def _triple(config: Config, key: str, default: tuple[float, float, float]) -> tuple[float, float, float]:
    found = config.values.get(key)
    if found is None:
        return default
    if (
        not isinstance(found, list)
        or len(found) != 3
        or not all(isinstance(one, int | float) for one in found)
    ):
        raise config.wrong(key, found, "three numbers, one for each channel")
    return float(found[0]), float(found[1]), float(found[2])


def common(
    config: Config, resample: int, mean: tuple[float, float, float], std: tuple[float, float, float]
) -> dict[str, Any]:
    """Return what all kinds of processing have."""
    for switch in ("do_resize", "do_rescale", "do_normalize"):
        config.refuse(switch, True, "Images are always resized and normalised.")
    return {
        "resample": config.count("resample", resample, minimum=0),
        "scale": config.number("rescale_factor", 1 / 255),
        "mean": _triple(config, "image_mean", mean),
        "std": _triple(config, "image_std", std),
    }
