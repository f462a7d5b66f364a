"""Rules by which a checkpoint's video processor samples and resizes frames. Knows no decoder and no torch.

The arithmetic is that of transformers' video processors of Qwen2-VL and Qwen3-VL. These need torchvision, which is no
dependency here: Pillow resizes each frame instead.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.models.vision.processing import ASPECT_MAX, ImageRefused, Pixels, Processing, Size

__all__ = [
    "DURATION_SECONDS_MAX",
    "FRAMES_FPS",
    "FRAMES_MAX",
    "FRAME_PIXELS_MAX",
    "VIDEO_BYTES_MAX",
    "VIDEO_PIXELS_MAX",
    "VideoFrames",
    "VideoProcessing",
    "VideoRefused",
]

VIDEO_BYTES_MAX = 64 << 20
"""Of an encoded video, or of all its encoded frames."""
DURATION_SECONDS_MAX = 1200.0
FRAMES_MAX = 100_000
"""Of a file; the model sees some of them."""
FRAME_PIXELS_MAX = 4096 * 2304
"""Of a frame as it comes."""
VIDEO_PIXELS_MAX = 64_000_000
"""Pixels of all frames together, as the model sees them."""
FRAMES_FPS = 1.0
"""Frames a second of a video that comes as frames, where nobody says how many."""


class VideoRefused(ImageRefused):
    """A video that cannot be shown to a model. The message says what was found and what was expected."""


class VideoFrames(NamedTuple):
    """Frames of a video as a model sees them."""

    pixels: Pixels
    """uint8 [frames, height, width, 3]."""
    seconds: npt.NDArray[np.float64]
    """[frames]: when each of them is shown."""
    rate: float
    """Frames a second."""


class VideoProcessing(msgspec.Struct, frozen=True, kw_only=True):
    """Rules by which frames are sampled, resized and normalised.

    Attributes:
        frame: of each frame, of the kind `area`. Where bounds are `by_volume`, those of its area are of all frames.
        step: frames of one patch.
        fps: frames a second that are sampled, unless `num_frames` says how many in all.
        frames_least, frames_most: bounds of the frames that are sampled by `fps`.
        by_volume: the area of all frames together is bounded, and the first and the last frame are sampled
            (Qwen3-VL). Otherwise that of each frame is, and frames begin equal parts of the video (Qwen2-VL).
        tokens_most: tokens that bound the area besides: of a frame where it is `by_volume`, else of nine tenths of the
            video. None is no such bound.
    """

    frame: Processing
    step: int = 2
    fps: float = 2.0
    num_frames: int | None = None
    frames_least: int = 4
    frames_most: int = 768
    by_volume: bool = False
    tokens_most: int | None = None

    def sampled(self, total: int, rate: float, fps: float | None = None) -> npt.NDArray[np.int64]:
        """Return the indices of the frames that are shown, int64 [frames], ascending.

        Args:
            total: frames of the video, at least 1.
            rate: frames a second of the video.
            fps: those that are wanted; None is as the checkpoint says.
        """
        wanted = total / rate * (self.fps if fps is None else fps)
        if fps is None and self.num_frames is not None:
            wanted = self.num_frames
            least, most = 1, total
        else:
            least, most = self.frames_least, min(self.frames_most, total)
        if self.by_volume:
            count = min(max(int(wanted), least), most)
            return np.linspace(0, total - 1, max(1, count)).round().astype(np.int64)
        if total < self.step:
            return np.arange(total)
        bounded = min(max(wanted, least), most // self.step * self.step)
        by_number = fps is None and self.num_frames is not None
        count = int((round(bounded / self.step) if by_number else bounded // self.step) * self.step)
        # The processor steps in 32 bits, which decides where a step falls on a frame's boundary.
        step = total / max(self.step, count)
        found: npt.NDArray[np.int64] = np.arange(0, total, step).astype(np.float32).astype(np.int64)
        return found

    def resized(self, count: int, size: Size) -> Size:
        """Return the size of each of so many frames, which are resized to it.

        Raises:
            VideoRefused: they are too long for their width, the reverse, or too large together.
        """
        width, height = size
        if max(size) > ASPECT_MAX * min(size):
            raise VideoRefused(
                f"the video's frames have {width} x {height} pixels; expected at most {ASPECT_MAX} times as many one "
                "way as the other"
            )
        found = self._by_volume(count, size) if self.by_volume else self._by_frame(count, size)
        padded = -(-count // self.step) * self.step
        if padded * found[0] * found[1] > VIDEO_PIXELS_MAX:
            raise VideoRefused(
                f"the video would be shown as {count} frames of {found[0]} x {found[1]} pixels; at most "
                f"{VIDEO_PIXELS_MAX} pixels are taken: expected a shorter or a smaller one"
            )
        return found

    def _by_frame(self, count: int, size: Size) -> Size:
        frame = self.frame
        if self.tokens_most is not None:
            share = int(self.tokens_most * frame.multiple**2 * 0.9) * self.step // count
            most = max(min(frame.most, share), int(frame.least * 1.05))
            frame = msgspec.structs.replace(frame, most=most)
        return frame.fit_area(*size)

    def _by_volume(self, count: int, size: Size) -> Size:
        factor, most = self.frame.multiple, self.frame.most
        count = max(count, self.step)
        if self.tokens_most is not None:
            share = min(self.tokens_most * factor**2, most // count)
            most = max(share, int(self.frame.least * 1.05)) * count
        width, height = size
        if min(size) < factor:
            scale = max(factor / height, factor / width)
            width, height = int(width * scale), int(height * scale)
        found = round(width / factor) * factor, round(height / factor) * factor
        volume = round(count / self.step) * self.step * found[0] * found[1]
        if volume > most:
            shrink = math.sqrt(count * height * width / most)
            found = (
                max(factor, math.floor(width / shrink / factor) * factor),
                max(factor, math.floor(height / shrink / factor) * factor),
            )
        elif volume < self.frame.least:
            grow = math.sqrt(self.frame.least / (count * height * width))
            found = math.ceil(width * grow / factor) * factor, math.ceil(height * grow / factor) * factor
        return found
