"""frontend ──EncodeImages──▶ encoder: images and videos to the tokens and embeddings that stand for them in a prompt.

The answer is `Encoded`, or `NotEncoded` when an image or a video itself is at fault. Nothing of a request is kept at an
encoder: its rows travel with the request, so that an encoder may die at any time.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Float32Matrix, Int32Vector, UInt8Vector
from pageant.protocol.message import Message, Request

__all__ = [
    "EncodeImages",
    "Encoded",
    "EncodedImage",
    "EncoderStatistics",
    "GetEncoderStatistics",
    "ImageInputs",
    "ImagePart",
    "NotEncoded",
    "VideoInputs",
    "VideoPart",
]


class ImagePart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="image"):
    """An image within a message."""

    data: UInt8Vector | None = None
    """uint8 [bytes]: the file, such as a PNG. None in messages for a tokenizer, which needs no pixels."""


class VideoPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="video"):
    """A video within a message."""

    data: UInt8Vector | None = None
    """uint8 [bytes]: the file, such as an MP4, or images one after another. None in messages for a tokenizer."""
    sizes: Int32Vector | None = None
    """int32 [frames]: the bytes of each of the images, which are shown as they are. None is one file."""
    fps: float | None = None
    """Frames a second: of those that are taken from a file, or of the images. None is the checkpoint's, or one."""


class VideoInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The videos that a model takes, as its frontends know them.

    Attributes:
        placeholder: the token that stands for a video until it is encoded.
        most: videos of one prompt.
        begin, end: tokens around each step of time of a video whose steps are told apart; else None.
    """

    placeholder: int
    most: int
    begin: int | None = None
    end: int | None = None


class ImageInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The images that a model takes, as its frontends know them.

    Attributes:
        placeholder: the token that stands for an image until it is encoded.
        reserved: tokens that a prompt may have for its images and videos only.
        most: images of one prompt.
        around: a text that the tokenizer puts before and behind a placeholder.
        rotary: images have positions by height and width (M-RoPE).
        whole: an image is computed in one step, since its tokens attend to each other both ways.
        video: the videos that the model takes; None is none.
    """

    placeholder: int
    reserved: tuple[int, ...]
    most: int
    around: str = ""
    rotary: bool = False
    whole: bool = False
    video: VideoInputs | None = None


class EncodedImage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image or a video as a prompt has it, in place of one placeholder."""

    token_ids: Int32Vector
    """int32 [tokens]."""
    places: Int32Vector
    """int32 [n], ascending: those of the tokens that have embeddings."""
    rows: Float32Matrix
    """float32 [n, width]: see `PromptEmbeds`."""
    names: UInt8Vector
    """uint8 [n * 16]: see `PromptEmbeds`. They go by the pixels of the whole image."""
    grid: Int32Vector
    """int32 [3]: embedded tokens by time, height and width."""
    interval: float = 1.0
    """Positions from one step of time to the next."""
    marks: tuple[str, ...] = ()
    """Texts before each step of time, which tell it, where a model reads such."""


class Encoded(Message, frozen=True, kw_only=True):
    """The images and videos of a request, in order."""

    images: tuple[EncodedImage, ...]


class NotEncoded(Message, frozen=True, kw_only=True):
    """An image or a video cannot be shown to the model."""

    index: int
    """Of the image or video, in the request."""
    reason: str
    """What was found and what was expected."""


class EncodeImages(Request[Encoded | NotEncoded], frozen=True, kw_only=True):
    """Encode the images and videos of a request."""

    images: tuple[ImagePart | VideoPart, ...]
    tokens_max: int | None = None
    """Refuse, without encoding it, what would have more tokens."""


class EncoderStatistics(Message, frozen=True, kw_only=True):
    """Counters of an encoder since its start."""

    encoded: int
    """Images and videos that went through the vision tower."""
    cached: int
    """Images and videos that were found in the cache, or that another request had in work."""
    decoded: int
    """Images and videos whose pixels were decoded."""
    refused: int
    """Images and videos that were at fault."""
    evicted: int
    """Images and videos that gave way in the cache."""
    cache_bytes: int
    """Bytes that the cache holds."""
    waiting: int
    """Images and videos that are in work or wait for it."""


class GetEncoderStatistics(Request[EncoderStatistics], frozen=True, kw_only=True):
    """Ask an encoder for its counters."""
