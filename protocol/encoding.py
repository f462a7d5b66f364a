"""frontend ──EncodeImages──▶ encoder: images to the tokens and embeddings that stand for them in a prompt.

The answer is `Encoded`, or `NotEncoded` when an image itself is at fault. Nothing of a request is kept at an encoder:
its rows travel with the request, so that an encoder may die at any time.
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
]


class ImagePart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image within a message."""

    data: UInt8Vector | None = None
    """uint8 [bytes]: the file, such as a PNG. None in messages for a tokenizer, which needs no pixels."""


class ImageInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The images that a model takes, as its frontends know them.

    Attributes:
        placeholder: the token that stands for an image until it is encoded.
        reserved: tokens that a prompt may have for its images only.
        most: images of one prompt.
        around: a text that the tokenizer puts before and behind a placeholder.
        rotary: images have positions by height and width (M-RoPE).
        whole: an image is computed in one step, since its tokens attend to each other both ways.
    """

    placeholder: int
    reserved: tuple[int, ...]
    most: int
    around: str = ""
    rotary: bool = False
    whole: bool = False


class EncodedImage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image as a prompt has it, in place of one placeholder."""

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


class Encoded(Message, frozen=True, kw_only=True):
    """The images of a request, in order."""

    images: tuple[EncodedImage, ...]


class NotEncoded(Message, frozen=True, kw_only=True):
    """An image cannot be shown to the model."""

    index: int
    """Of the image."""
    reason: str
    """What was found and what was expected."""


class EncodeImages(Request[Encoded | NotEncoded], frozen=True, kw_only=True):
    """Encode the images of a request."""

    images: tuple[ImagePart, ...]


class EncoderStatistics(Message, frozen=True, kw_only=True):
    """Counters of an encoder since its start."""

    encoded: int
    """Images that went through the vision tower."""
    cached: int
    """Images that were found in the cache, or that another request had in work."""
    decoded: int
    """Images whose pixels were decoded."""
    refused: int
    """Images that were at fault."""
    evicted: int
    """Images that gave way in the cache."""
    cache_bytes: int
    """Bytes that the cache holds."""
    waiting: int
    """Images that are in work or wait for it."""


class GetEncoderStatistics(Request[EncoderStatistics], frozen=True, kw_only=True):
    """Ask an encoder for its counters."""
