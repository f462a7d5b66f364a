"""Videos to the frames that a model sees. Knows PyAV (FFmpeg), Pillow and numpy, and no torch."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pageant.models.vision.processing import ImageRefused, Pixels, open_rgb
from pageant.models.vision.video import (
    DURATION_SECONDS_MAX,
    FRAME_PIXELS_MAX,
    FRAMES_FPS,
    FRAMES_MAX,
    VIDEO_BYTES_MAX,
    VideoFrames,
    VideoProcessing,
    VideoRefused,
)

__all__ = ["decode_video"]

EXPECTED = "expected an MP4, MOV, WebM, Matroska or AVI file"
_THREADS = 2
_LOST_MAX = 2
"""Frames at the end that a whole file may promise without showing them."""
_LOST_SECONDS = 0.5
"""Seconds that a whole file may promise beyond the end of all that it has."""
_DAMAGED = (OSError, ValueError, ArithmeticError, LookupError, MemoryError, TypeError)


def decode_video(
    data: bytes, processing: VideoProcessing, sizes: Sequence[int] | None = None, fps: float | None = None
) -> VideoFrames:
    """Return a video as the model sees it.

    Args:
        data: a file; or images one after another, which are all shown.
        sizes: bytes of each of the images; None is a file.
        fps: frames a second: of those that are taken from a file, or of the images.

    Raises:
        VideoRefused: no video, a damaged, too large or too long one, or PyAV is not installed.
    """
    if len(data) > VIDEO_BYTES_MAX:
        raise VideoRefused(f"the video has {len(data)} bytes; at most {VIDEO_BYTES_MAX} are taken")
    if sizes is not None:
        return _of_images(data, sizes, FRAMES_FPS if fps is None else fps, processing)
    return _of_file(data, fps, processing)


def _of_images(data: bytes, sizes: Sequence[int], rate: float, processing: VideoProcessing) -> VideoFrames:
    """Return the frames of a video that comes as images."""
    if not 0 < len(sizes) <= processing.frames_most:
        raise VideoRefused(f"the video has {len(sizes)} frames; expected 1 to {processing.frames_most}")
    shown = _Shown(len(sizes), processing)
    start = 0
    for index, size in enumerate(sizes):
        try:
            image = open_rgb(data[start : start + size])
        except ImageRefused as error:
            raise VideoRefused(f"frame {index + 1} of {len(sizes)}: {error}") from None
        shown.add(index, np.asarray(image))
        start += size
    return VideoFrames(shown.pixels, np.arange(len(sizes)) / rate, rate)


class _Shown:
    """Frames that were resized, of so many."""

    def __init__(self, count: int, processing: VideoProcessing) -> None:
        self._count, self._processing = count, processing
        self._size: tuple[int, int] | None = None
        """Width and height of frames as they come; None before the first."""

    def add(self, index: int, frame: Pixels) -> None:
        """Take a frame, uint8 [height, width, 3]."""
        from PIL import Image

        size = frame.shape[1], frame.shape[0]
        if self._size is None:
            self._size = size
            self._resized = self._processing.resized(self._count, size)
            width, height = self._resized
            self.pixels: Pixels = np.empty((self._count, height, width, 3), np.uint8)
        if size != self._size:
            raise VideoRefused(
                f"frame {index + 1} has {size[0]} x {size[1]} pixels; expected {self._size[0]} x {self._size[1]}, as "
                "the first has"
            )
        if size != self._resized:
            image = Image.fromarray(frame).resize(self._resized, resample=self._processing.frame.resample)
            frame = np.asarray(image)
        self.pixels[index] = frame


def _of_file(data: bytes, fps: float | None, processing: VideoProcessing) -> VideoFrames:
    """Return frames of an encoded video."""
    try:
        import av
    except ImportError:
        raise VideoRefused(
            "video files need PyAV, which is not installed where the encoder runs; expected pip install "
            "'pageant[video]', or frames as images"
        ) from None
    form = _form_of(data)
    try:
        with av.open(io.BytesIO(data), format=form) as container:
            stream = _stream(container)
            total, rate = _length(container, stream)
        indices = processing.sampled(total, rate, fps)
        shown = _Shown(len(indices), processing)
        with av.open(io.BytesIO(data), format=form) as container:
            _show(_frames(container, _stream(container)), indices.tolist(), shown)
    except VideoRefused:
        raise
    except _DAMAGED as error:  # av's own errors are among them
        found = getattr(error, "strerror", None) or error
        raise VideoRefused(
            f"the video is damaged or cut short ({found!s:.200}); expected a whole one"
        ) from None
    return VideoFrames(shown.pixels, indices / rate, len(indices) / total * rate)


def _form_of(data: bytes) -> str:
    """Return FFmpeg's name of a file's format, by its first bytes.

    FFmpeg is not left to guess: some of its formats are lists of other files, which it would open.
    """
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return "mp4"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    raise VideoRefused(f"the data is no video that is known here; {EXPECTED}")


def _stream(container: Any) -> Any:
    """Return the stream of pictures, which is no cover of an album."""
    import av

    cover = av.stream.Disposition.attached_pic
    stream = next((one for one in container.streams.video if not one.disposition & cover), None)
    if stream is None:
        raise VideoRefused("the file has no pictures; expected a video")
    width, height = stream.width, stream.height
    if not 0 < width * height <= FRAME_PIXELS_MAX:
        raise VideoRefused(
            f"the video has frames of {width} x {height} pixels; expected 1 to {FRAME_PIXELS_MAX}"
        )
    stream.codec_context.thread_count = _THREADS
    return stream


def _length(container: Any, stream: Any) -> tuple[int, float]:
    """Return the number of frames, and how many there are in a second.

    Raises:
        VideoRefused: there are none, too many, or fewer than the file's header says; or it is too long.
    """
    rate = float(stream.average_rate or stream.guessed_rate or 0)
    declared = float(stream.duration * stream.time_base) if stream.duration else 0.0
    _refuse_long(max(declared, stream.frames / rate if rate else 0.0))
    packets = shown = 0
    end = 0.0
    for packet in container.demux():
        if packet.pts is not None:
            end = max(end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        if packet.stream.index == stream.index and packet.size:
            packets += 1
            shown += not packet.is_discard
        if packets > FRAMES_MAX:
            raise VideoRefused(f"the video has more than {FRAMES_MAX} frames; expected a shorter one")
    if packets < stream.frames:
        raise VideoRefused(
            f"the video is damaged or cut short: it has {packets} of {stream.frames} frames; expected a whole one"
        )
    whole = (container.duration or 0) / 1e6
    if whole - end > max(_LOST_SECONDS, 0.05 * whole):
        raise VideoRefused(
            f"the video is damaged or cut short: it has {end:.1f} of {whole:.1f} seconds; expected a whole one"
        )
    if not shown or not rate:
        what = "no frames" if not shown else "no rate of frames"
        raise VideoRefused(f"the video has {what}; {EXPECTED}")
    _refuse_long(shown / rate)
    return shown, rate


def _refuse_long(seconds: float) -> None:
    if seconds > DURATION_SECONDS_MAX:
        raise VideoRefused(
            f"the video has {seconds:.0f} seconds; at most {DURATION_SECONDS_MAX:.0f} are taken"
        )


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    """Yield decoded frames in the order in which they are shown."""
    yield from container.decode(stream)


def _show(frames: Iterator[Any], indices: list[int], shown: _Shown) -> None:
    """Take those frames of a video that have these indices, ascending.

    Raises:
        VideoRefused: the video ends before the last of them.
    """
    last, place, count = None, 0, 0
    for count, frame in enumerate(frames, start=1):
        if indices[place] == count - 1:
            last = _upright(frame)
            shown.add(place, last)
            place += 1
            if place == len(indices):
                return
        elif indices[-1] - count < _LOST_MAX:
            last = _upright(frame)
    if last is None or indices[-1] - count >= _LOST_MAX:
        raise VideoRefused(
            f"the video is damaged or cut short: {count} of {indices[-1] + 1} frames can be decoded; expected a "
            "whole one"
        )
    for index in range(place, len(indices)):
        shown.add(index, last)


def _upright(frame: Any) -> Pixels:
    """Return a frame as it is to be seen, uint8 [height, width, 3]: cameras may say that it is turned."""
    pixels: Pixels = frame.to_ndarray(format="rgb24")
    turns = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, turns)) if turns else pixels
