"""Families of models that see, as far as their configurations tell: what stands for an image in a prompt, and how its
pixels are made. Knows no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pageant.models.checkpoint import Checkpoint
from pageant.models.config import Config
from pageant.models.vision.preprocessors import (
    BICUBIC,
    BILINEAR,
    CLIP_MEAN,
    CLIP_STD,
    HALVES,
    common,
    preprocessor,
)
from pageant.models.vision.processing import Processing, Size
from pageant.models.vision.video_families import VideoSpec, video_preprocessor, video_spec

__all__ = ["ImageTokens", "VisionSpec", "read_vision"]


@dataclass(frozen=True)
class ImageTokens:
    """Tokens that stand for one image in a prompt, in place of one placeholder.

    Attributes:
        token_ids: all of them, marks between rows included.
        places: those of them that are embedded as the image is.
        grid: of these, by time, height and width.
    """

    token_ids: tuple[int, ...]
    places: tuple[int, ...]
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class VisionSpec:
    """Description of how a model sees.

    Attributes:
        family: the class of the whole model in transformers.
        placeholder: the token that stands for an image in a prompt before it is expanded.
        processing: of its pixels.
        tokens: returns the tokens of an image whose pixels, cropped and all, have this size.
        around: a text that is put before and behind the placeholder.
        rotary: images are rotated by height and width too (M-RoPE).
        patch, merge: pixels of a patch's edge, and patches of a token's edge, where pixels are sent by patches.
        frames: equal frames of which patches are made.
        layers_added: layers whose outputs images are added to (deepstack).
        whole: tokens of an image attend to each other both ways.
        video: how the model sees videos; None where it sees none.
    """

    family: str
    placeholder: int
    processing: Processing
    tokens: Callable[[Size], ImageTokens]
    around: str = ""
    rotary: bool = False
    patch: int = 0
    merge: int = 1
    frames: int = 1
    layers_added: int = 0
    whole: bool = False
    video: VideoSpec | None = None


def read_vision(checkpoint: Checkpoint) -> VisionSpec | None:
    """Return how a checkpoint's model sees; None where it does not, or where transformers would have to run it.

    Raises:
        CheckpointError: its configuration makes no sense, or is not supported.
    """
    if checkpoint.architecture is None:
        return None
    config = Config(checkpoint.config, checkpoint.path / "config.json")
    reader = _READERS.get(checkpoint.architecture.name)
    if reader is None:
        return None
    spec = reader(config, preprocessor(checkpoint))
    if not spec.patch:
        return spec
    return replace(spec, video=video_spec(spec.family, config, video_preprocessor(checkpoint)))


def _edges(config: Config, key: str, default: int) -> Size:
    """Return a width and a height, which may be written as one number."""
    found = config.values.get(key, default)
    if isinstance(found, int) and not isinstance(found, bool):
        return found, found
    section = config.section(key)
    return section.count("width", default), section.count("height", default)


# LLaVA, with CLIP's or SigLIP's tower, or with Pixtral's.


def _llava(config: Config, images: Config) -> VisionSpec:
    vision = config.section("vision_config")
    if vision.text("model_type", "clip_vision_model") == "pixtral":
        return _pixtral(config, images, merge=1)
    patch, edge = vision.count("patch_size", 14), vision.count("image_size", 336)
    images.refuse("do_pad", False, "Images are cropped.")
    shortest = images.section("size").count("shortest_edge", edge)
    crop = _edges(images, "crop_size", edge)
    if max(crop) > shortest:
        raise images.wrong("crop_size", crop, f"at most {shortest}, the shorter edge")
    processing = Processing(
        kind="crop", shortest=shortest, size=crop, **common(images, BICUBIC, CLIP_MEAN, CLIP_STD)
    )
    strategy = config.text("vision_feature_select_strategy", "default")
    has_class = vision.text("model_type", "clip_vision_model") == "clip_vision_model"
    token = _image_token(config)
    more = int(has_class) - int(strategy == "default")

    def tokens(size: Size) -> ImageTokens:
        grid = size[1] // patch, size[0] // patch
        return _run(token, grid, grid[0] * grid[1] + more)

    return VisionSpec("LlavaForConditionalGeneration", token, processing, tokens)


def _image_token(config: Config) -> int:
    key = "image_token_id" if "image_token_id" in config else "image_token_index"
    return config.count(key, minimum=0)


def _run(token: int, grid: tuple[int, int], count: int | None = None) -> ImageTokens:
    """Return tokens that are all embedded."""
    count = grid[0] * grid[1] if count is None else count
    return ImageTokens((token,) * count, tuple(range(count)), (1, *grid))


# Pixtral and Mistral 3: rows of tokens, with marks between them.


def _pixtral(config: Config, images: Config, merge: int) -> VisionSpec:
    vision = config.section("vision_config")
    patch = vision.count("patch_size", 16)
    longest = images.section("size").count("longest_edge", vision.count("image_size", 1024))
    multiple = _edges(images, "patch_size", patch)[0]
    factor = multiple if multiple % (patch * merge) == 0 else patch * merge
    processing = Processing(
        kind="longest", multiple=factor, most=longest, **common(images, BICUBIC, CLIP_MEAN, CLIP_STD)
    )
    token = _image_token(config)
    row_end, end = config.count("image_break_token_id", 12), config.count("image_end_token_id", 13)

    def tokens(size: Size) -> ImageTokens:
        width, height = size[0] // (patch * merge), size[1] // (patch * merge)
        row = (*(token,) * width, row_end)
        token_ids = (*(row * height)[:-1], end)
        places = tuple(index for index in range(len(token_ids)) if (index + 1) % (width + 1))
        return ImageTokens(token_ids, places, (1, height, width))

    family = "Mistral3ForConditionalGeneration" if merge > 1 else "LlavaForConditionalGeneration"
    return VisionSpec(family, token, processing, tokens, merge=merge)


def _mistral3(config: Config, images: Config) -> VisionSpec:
    return _pixtral(config, images, config.count("spatial_merge_size", 2))


# Gemma 3: as many tokens for each image, between two marks.


def _gemma3(config: Config, images: Config) -> VisionSpec:
    edge = config.section("vision_config").count("image_size", 896)
    images.refuse("do_pan_and_scan", False, "Images are shown whole.")
    size = images.section("size")
    processing = Processing(
        kind="fixed",
        size=(size.count("width", edge), size.count("height", edge)),
        **common(images, BILINEAR, HALVES, HALVES),
    )
    if processing.size != (edge, edge):
        raise size.wrong("height", list(processing.size), f"{edge} by {edge}, of vision_config")
    side = math.isqrt(config.count("mm_tokens_per_image", 256))
    begin, end = config.count("boi_token_index", 255_999), config.count("eoi_token_index", 256_000)
    shown = (config.count("image_token_id" if "image_token_id" in config else "image_token_index", 262_144),)

    def tokens(_: Size) -> ImageTokens:
        count = side * side
        return ImageTokens((begin, *shown * count, end), tuple(range(1, count + 1)), (1, side, side))

    name = "Gemma3ForConditionalGeneration"
    return VisionSpec(name, begin, processing, tokens, around="\n\n", whole=True)


# Qwen-VL.


def _qwen(name: str) -> Callable[[Config, Config], VisionSpec]:
    def read(config: Config, images: Config) -> VisionSpec:
        vision = config.section("vision_config")
        is_third = name.startswith("Qwen3")
        patch = images.count("patch_size", vision.count("patch_size", 16 if is_third else 14))
        merge = images.count("merge_size", vision.count("spatial_merge_size", 2))
        size = images.section("size")
        processing = Processing(
            kind="area",
            multiple=patch * merge,
            least=images.count("min_pixels", size.count("shortest_edge", 56 * 56)),
            most=images.count("max_pixels", size.count("longest_edge", 28 * 28 * 1280)),
            **common(images, BICUBIC, *((HALVES, HALVES) if is_third else (CLIP_MEAN, CLIP_STD))),
        )
        token = config.count("image_token_id", minimum=0)

        def tokens(size: Size) -> ImageTokens:
            return _run(token, (size[1] // (patch * merge), size[0] // (patch * merge)))

        return VisionSpec(
            name,
            token,
            processing,
            tokens,
            rotary=True,
            patch=patch,
            merge=merge,
            frames=images.count("temporal_patch_size", vision.count("temporal_patch_size", 2)),
            layers_added=len(vision.counts("deepstack_visual_indexes")) if is_third else 0,
        )

    return read


_QWEN = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Qwen3_5", "Qwen3_5Moe")
_READERS: Mapping[str, Callable[[Config, Config], VisionSpec]] = {
    "LlavaForConditionalGeneration": _llava,
    "Mistral3ForConditionalGeneration": _mistral3,
    "Gemma3ForConditionalGeneration": _gemma3,
    **{f"{name}ForConditionalGeneration": _qwen(f"{name}ForConditionalGeneration") for name in _QWEN},
}
