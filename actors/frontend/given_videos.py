"""Videos as users bring them: data: URLs, encoded files, and frames. Nothing is fetched here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pageant.actors.frontend.given_images import check_bytes, read_base64, read_data_url, read_image
from pageant.models.vision.video import VIDEO_BYTES_MAX
from pageant.protocol.arrays import int32
from pageant.protocol.encoding import VideoPart
from pageant.protocol.errors import BadRequest

__all__ = ["read_video", "read_video_url", "read_videos"]

_EXPECTED = "expected a data: URL such as data:video/mp4;base64,..."
_FRAMES = "video/jpeg"
"""The kind of a data: URL that has frames, with commas between them."""
FPS_MAX = 240.0


def read_video_url(url: Any, place: str, fps: Any = None, parameter: str = "messages") -> VideoPart:
    """Return the video of a data: URL. Others are refused: nothing is fetched, and no file is read.

    Raises:
        BadRequest: another kind of URL, no base64, or too many bytes; names the place.
    """
    rate = _rate(fps, place, parameter)
    kind, text = read_data_url(url, place, _EXPECTED, parameter)
    if kind != _FRAMES:
        return _file(read_base64(text, place, parameter, VIDEO_BYTES_MAX, "a video"), rate)
    frames = [
        read_base64(frame, f"{place}: frame {index + 1}", parameter)
        for index, frame in enumerate(text.split(","))
    ]
    return _frames(frames, rate, place, parameter)


def read_video(value: Any, place: str, fps: Any = None, parameter: str = "prompt") -> VideoPart:
    """Return a video as users of the library bring it.

    Args:
        value: an encoded file, a data: URL, an array uint8 [frames, height, width, 3], or a list of images.
        fps: frames a second: of those that are taken from a file, or of the images; None is the default.

    Raises:
        BadRequest: none of them; names the place.
    """
    if isinstance(value, VideoPart):
        return value
    rate = _rate(fps, place, parameter)
    if isinstance(value, str):
        return read_video_url(value, place, fps, parameter)
    if isinstance(value, bytes | bytearray | memoryview):
        check_bytes(value, place, parameter, VIDEO_BYTES_MAX, "a video")
        return _file(bytes(value), rate)
    if isinstance(value, np.ndarray) and value.ndim != 4:
        found = f"{value.dtype} of shape {list(value.shape)}"
        raise BadRequest(f"{place} is {found}; expected uint8 [frames, height, width, 3]", parameter)
    if not isinstance(value, Sequence | np.ndarray):
        kinds = "a list of images, an array, bytes, or a data: URL"
        raise BadRequest(f"{place} is a {type(value).__name__}; expected {kinds}", parameter)
    frames = []
    for index, frame in enumerate(value):
        part = read_image(frame, f"{place}[{index}]", parameter)
        assert part.data is not None, "it was read"
        frames.append(part.data.tobytes())
    return _frames(frames, rate, place, parameter)


def read_videos(value: Any, place: str) -> tuple[VideoPart, ...]:
    """Return the videos of `multi_modal_data`: one, or a list of them. A list of images is one video."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not value or not _is_video(value[0]):
        return (read_video(value, place),)
    return tuple(read_video(one, f"{place}[{index}]") for index, one in enumerate(value))


def _is_video(value: Any) -> bool:
    """Tell whether the first of a list is a video itself, and no frame."""
    is_array = isinstance(value, np.ndarray) and value.ndim == 4
    return is_array or isinstance(value, VideoPart | list | tuple | bytes | bytearray | memoryview | str)


def _rate(fps: Any, place: str, parameter: str) -> float | None:
    if fps is None:
        return None
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= FPS_MAX:
        raise BadRequest(
            f"{place}: fps is {fps!r:.80}; expected a number above 0, at most {FPS_MAX:g}", parameter
        )
    return float(fps)


def _file(data: bytes, rate: float | None) -> VideoPart:
    return VideoPart(data=np.frombuffer(data, np.uint8), fps=rate)


def _frames(frames: list[bytes], rate: float | None, place: str, parameter: str) -> VideoPart:
    if not frames:
        raise BadRequest(f"{place} has no frames; expected at least one", parameter)
    data = b"".join(frames)
    check_bytes(data, place, parameter, VIDEO_BYTES_MAX, "a video")
    return VideoPart(
        data=np.frombuffer(data, np.uint8), sizes=int32([len(frame) for frame in frames]), fps=rate
    )
