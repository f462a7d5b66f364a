"""Program that runs transformers' own video processors without torchvision, in a process of its own.

They import torchvision, which breaks a torch that was not built with it. Four functions of it stand in here, which
transformers calls for videos: `resize` is torch's `interpolate`, as torchvision's is.

Arguments: a JSON file of cases, a file of frames [frames, height, width, 3], and the npz file to write.
"""

from __future__ import annotations

import enum
import importlib.machinery
import json
import sys
import types
from typing import Any

import numpy as np
import torch

PREFIX = "torchvision"


class InterpolationMode(enum.Enum):
    """Names of filters, as torchvision has them."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def _resize(video: Any, size: Any, interpolation: InterpolationMode, antialias: bool) -> Any:
    flat = video.flatten(0, -4)
    found = torch.nn.functional.interpolate(
        flat, size=tuple(size), mode=interpolation.value, antialias=antialias
    )
    return found.reshape(*video.shape[:-2], *found.shape[-2:])


def _normalize(video: Any, mean: Any, std: Any, inplace: bool) -> Any:
    del inplace
    return (video - torch.as_tensor(mean).view(-1, 1, 1)) / torch.as_tensor(std).view(-1, 1, 1)


def stand_in() -> None:
    """Put modules in the place of torchvision's."""
    made = {}
    for name in (
        "",
        ".io",
        ".transforms",
        ".transforms.functional",
        ".transforms.v2",
        ".transforms.v2.functional",
    ):
        module: Any = types.ModuleType(PREFIX + name)
        module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(PREFIX + name, None), []
        module.InterpolationMode = InterpolationMode
        sys.modules[PREFIX + name] = made[name] = module
        if name:
            parent, _, last = name.rpartition(".")
            setattr(made[parent], last, module)
    made[""].__version__ = "0.28.0"
    made[".transforms.functional"].pil_to_tensor = None
    functions = made[".transforms.v2.functional"]
    functions.resize, functions.normalize = _resize, _normalize
    functions.grayscale_to_rgb = lambda video: video
    import transformers.utils
    from transformers.utils import import_utils

    for module in (import_utils, transformers.utils):
        module.is_torchvision_available = lambda: True  # type: ignore[attr-defined]


def main(cases: str, frames: str, out: str) -> None:
    """Write what the processors make of each case."""
    stand_in()
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.video_utils import VideoMetadata

    kinds = {"qwen2_vl": Qwen2VLVideoProcessor, "qwen3_vl": Qwen3VLVideoProcessor}
    with open(cases) as file:
        asked = json.load(file)
    videos = np.load(frames)
    found: dict[str, Any] = {}
    for index, (kind, config, total, rate) in enumerate(asked["sampled"]):
        processor = kinds[kind](**config)
        wanted = {name: config.get(name) for name in ("fps", "num_frames")}
        indices = processor.sample_frames(VideoMetadata(total_num_frames=total, fps=rate), **wanted)
        found[f"sampled{index}"] = np.asarray(indices)
    for index, (kind, config, name) in enumerate(asked["shown"]):
        given = kinds[kind](**config)(list(videos[name][None]), do_sample_frames=False, return_tensors="pt")
        found[f"pixels{index}"] = given["pixel_values_videos"].numpy()
        found[f"grid{index}"] = given["video_grid_thw"].numpy()
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
