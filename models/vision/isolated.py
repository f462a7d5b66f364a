"""Decoding of images and videos in processes of their own: one that ends its process costs nobody else anything."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.models.vision.processing import ImageRefused, Processing, decode
from pageant.models.vision.video import VideoFrames, VideoProcessing, VideoRefused

__all__ = [
    "OPENER",
    "VIDEO_OPENER",
    "argument_of",
    "frames_of",
    "open_decoder",
    "open_video_decoder",
    "pixels_of",
    "video_request",
]

OPENER = f"{__name__}:open_decoder"
VIDEO_OPENER = f"{__name__}:open_video_decoder"
_PIXELS, _REFUSED = b"p", b"r"
_EDGE_BYTES = 4


class _VideoRequest(msgspec.Struct, array_like=True):
    """Head of a request to decode a video; its bytes are behind it."""

    sizes: tuple[int, ...] | None
    fps: float | None


class _VideoAnswer(msgspec.Struct, array_like=True):
    """Head of frames, whose pixels are behind it."""

    shape: tuple[int, int, int, int]
    seconds: tuple[float, ...]
    rate: float


def argument_of(processing: Processing | VideoProcessing) -> str:
    """Return the argument of `open_decoder`, or of `open_video_decoder`."""
    return msgspec.json.encode(processing).decode()


def open_decoder(argument: str) -> Callable[[bytes], bytes]:
    """Return the function from encoded images to answers that `pixels_of` reads."""
    import PIL.Image  # now, so that its memory does not count towards an image's

    PIL.Image.init()
    processing = msgspec.json.decode(argument, type=Processing)

    def answer(data: bytes) -> bytes:
        try:
            pixels = decode(data, processing)
        except ImageRefused as error:
            return _REFUSED + str(error).encode(errors="backslashreplace")
        edges = b"".join(edge.to_bytes(_EDGE_BYTES, "little") for edge in pixels.shape[:2])
        return _PIXELS + edges + pixels.tobytes()

    return answer


def pixels_of(answer: bytes) -> npt.NDArray[np.uint8]:
    """Return the pixels of an answer, uint8 [height, width, 3].

    Raises:
        ImageRefused: the image was at fault.
    """
    if answer[:1] == _REFUSED:
        raise ImageRefused(answer[1:].decode())
    edges = [int.from_bytes(answer[first : first + _EDGE_BYTES], "little") for first in (1, 1 + _EDGE_BYTES)]
    return np.frombuffer(answer, np.uint8, offset=1 + 2 * _EDGE_BYTES).reshape(*edges, 3)


def video_request(data: bytes, sizes: tuple[int, ...] | None, fps: float | None) -> bytes:
    """Return a request to the function of `open_video_decoder`; see `decode_video`."""
    return _with_head(_VideoRequest(sizes, fps), data)


def open_video_decoder(argument: str) -> Callable[[bytes], bytes]:
    """Return the function from requests of `video_request` to answers that `frames_of` reads."""
    import PIL.Image

    from pageant.models.vision.video_decoding import decode_video

    PIL.Image.init()
    with contextlib.suppress(ImportError):  # which is told when a file comes
        import av  # noqa: F401  # now, so that its memory does not count towards a video's
    processing = msgspec.json.decode(argument, type=VideoProcessing)

    def answer(request: bytes) -> bytes:
        head, data = _split(request)
        asked = msgspec.msgpack.decode(head, type=_VideoRequest)
        try:
            frames = decode_video(data, processing, asked.sizes, asked.fps)
        except ImageRefused as error:
            return _REFUSED + str(error).encode(errors="backslashreplace")
        count, height, width, _ = frames.pixels.shape
        found = _VideoAnswer((count, height, width, 3), tuple(frames.seconds.tolist()), frames.rate)
        return _PIXELS + _with_head(found, frames.pixels.tobytes())

    return answer


def frames_of(answer: bytes) -> VideoFrames:
    """Return the frames of an answer.

    Raises:
        VideoRefused: the video was at fault.
    """
    if answer[:1] == _REFUSED:
        raise VideoRefused(answer[1:].decode())
    head, data = _split(answer[1:])
    found = msgspec.msgpack.decode(head, type=_VideoAnswer)
    return VideoFrames(
        np.frombuffer(data, np.uint8).reshape(found.shape), np.array(found.seconds), found.rate
    )


def _with_head(head: msgspec.Struct, data: bytes) -> bytes:
    encoded = msgspec.msgpack.encode(head)
    return len(encoded).to_bytes(_EDGE_BYTES, "little") + encoded + data


def _split(message: bytes) -> tuple[bytes, bytes]:
    end = _EDGE_BYTES + int.from_bytes(message[:_EDGE_BYTES], "little")
    return message[_EDGE_BYTES:end], message[end:]
