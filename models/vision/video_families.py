"""Families of models that see videos, as far as their configurations tell. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pageant.models.checkpoint import Checkpoint
from pageant.models.config import Config
from pageant.models.vision.preprocessors import (
    BICUBIC,
    CLIP_MEAN,
    CLIP_STD,
    HALVES,
    common,
    preprocessor,
)
from pageant.models.vision.processing import Processing
from pageant.models.vision.video import VideoFrames, VideoProcessing

__all__ = ["VideoSpec", "video_preprocessor", "video_spec"]

_FILES = ("processor_config.json", "video_preprocessor_config.json", "preprocessor_config.json")
_FPS = 2.0
"""Frames a second where the checkpoint does not say: those that the families were trained with."""


@dataclass(frozen=True)
class VideoSpec:
    """Description of how a model sees videos, by grids of tokens in time, height and width.

    Attributes:
        placeholder: the token that stands for a video in a prompt before it is expanded, and for its parts after.
        processing: of its frames.
        edge: pixels of a token's edge.
        begin, end: tokens around a grid where each step of time is one by itself behind a text that tells the time
            (Qwen3-VL); None where a video is one grid.
        positions_per_second: by which positions in time grow (Qwen2.5-VL); None is one for each step.
    """

    placeholder: int
    processing: VideoProcessing
    edge: int
    begin: int | None = None
    end: int | None = None
    positions_per_second: float | None = None

    def grid(self, frames: VideoFrames) -> tuple[int, int, int]:
        """Return the tokens of a video by time, height and width."""
        count, height, width, _ = frames.pixels.shape
        return -(-count // self.processing.step), height // self.edge, width // self.edge

    def interval(self, frames: VideoFrames) -> float:
        """Return the positions from one step of time to the next."""
        if self.positions_per_second is None:
            return 1.0
        return float(np.float32(self.positions_per_second) * np.float32(self.processing.step / frames.rate))

    def marks(self, frames: VideoFrames) -> tuple[str, ...]:
        """Return the texts that tell the time of each step; none where the model reads none."""
        if self.begin is None:
            return ()
        step, seconds = self.processing.step, frames.seconds.tolist()
        seconds += seconds[-1:] * (-len(seconds) % step)
        firsts, lasts = seconds[::step], seconds[step - 1 :: step]
        return tuple(f"<{(first + last) / 2:.1f} seconds>" for first, last in zip(firsts, lasts, strict=True))


def video_preprocessor(checkpoint: Checkpoint) -> Config:
    """Return the configuration of the video processor, or of that for images, which older checkpoints have alone."""
    return preprocessor(checkpoint, _FILES, "video_processor")


def video_spec(family: str, config: Config, videos: Config) -> VideoSpec | None:
    """Return how a model of Qwen's sees videos; None where its configuration names no token for them.

    Args:
        config: of the model.
        videos: of its video processor.

    Raises:
        CheckpointError: its configuration makes no sense.
    """
    if "video_token_id" not in config:
        return None
    vision = config.section("vision_config")
    third = family.startswith("Qwen3")
    edge = videos.count("patch_size", vision.count("patch_size", 16 if third else 14)) * videos.count(
        "merge_size", vision.count("spatial_merge_size", 2)
    )
    marked = third
    return VideoSpec(
        placeholder=config.count("video_token_id", minimum=0),
        processing=_processing(third, videos, vision, edge),
        edge=edge,
        begin=config.count("vision_start_token_id", minimum=0) if marked else None,
        end=config.count("vision_end_token_id", minimum=0) if marked else None,
        positions_per_second=(
            vision.number("tokens_per_second", 4.0) if family.startswith("Qwen2_5") else None
        ),
    )


def _processing(third: bool, videos: Config, vision: Config, edge: int) -> VideoProcessing:
    size = videos.section("size")
    default = (32 if third else 28) ** 2
    least, most = size.count("shortest_edge", 128 * default), size.count("longest_edge", 768 * default)
    if not third:
        least, most = videos.count("min_pixels", least), videos.count("max_pixels", most)
    frame = Processing(
        kind="area",
        multiple=edge,
        least=least,
        most=most,
        **common(videos, BICUBIC, *((HALVES, HALVES) if third else (CLIP_MEAN, CLIP_STD))),
    )
    fps = videos.values.get("fps")
    return VideoProcessing(
        frame=frame,
        step=videos.count("temporal_patch_size", vision.count("temporal_patch_size", 2)),
        fps=_FPS if fps is None else videos.number("fps", _FPS),
        num_frames=None if videos.values.get("num_frames") is None else videos.count("num_frames"),
        frames_least=videos.count("min_frames", 4),
        frames_most=videos.count("max_frames", 768),
        by_volume=third,
        tokens_most=(
            videos.count("max_video_tokens", 768 if third else 128_000)
            if videos.flag("cap_pixels_per_frame", False)
            else None
        ),
    )
