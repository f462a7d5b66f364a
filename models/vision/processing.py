"""Images to pixels as a checkpoint's preprocessor_config.json says. Knows Pillow and numpy, and no torch.

The arithmetic is that of transformers' image processors on Pillow, which need no torchvision.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "ASPECT_MAX",
    "BYTES_MAX",
    "PIXELS_MAX",
    "ImageRefused",
    "Pixels",
    "Processing",
    "Size",
    "decode",
    "normalised",
    "open_rgb",
]

PIXELS_MAX = 50_000_000
"""Of an image as it comes; a phone's camera has as many."""
BYTES_MAX = 20 << 20
"""Of an encoded image."""
ASPECT_MAX = 200
RESIZED_MAX = 16_000_000
"""Pixels of an image as the model sees it."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
EXPECTED = "expected a PNG, JPEG, WebP, GIF or BMP image"

Pixels = npt.NDArray[np.uint8]
Size = tuple[int, int]
"""Width and height, in pixels."""


class ImageRefused(ValueError):
    """An image that cannot be shown to a model. The message says what was found and what was expected."""


class Processing(msgspec.Struct, frozen=True, kw_only=True):
    """Rules by which images are resized, cropped and normalised.

    Attributes:
        kind: `crop` resizes the shorter edge and cuts out the middle; `area` keeps the aspect
            within bounds of the area (Qwen-VL); `longest` bounds the longer edge (Pixtral); `fixed` makes all of one
            size (Gemma 3).
        resample: Pillow's number of a filter.
        shortest: pixels of the shorter edge, for `crop`.
        size: width and height that `crop` cuts out, and of all images for `fixed`.
        multiple: each edge is a multiple of it, for `area` and `longest`.
        least, most: bounds of the area for `area`; of the longer edge for `longest`.
        scale, mean, std: pixels become (pixel * scale - mean) / std, by channel.
    """

    kind: Literal["crop", "area", "longest", "fixed"]
    resample: int
    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    shortest: int = 0
    size: Size = (0, 0)
    multiple: int = 1
    least: int = 0
    most: int = 0

    def resized(self, size: Size) -> Size:
        """Return the size that an image is resized to, before it is cropped.

        Raises:
            ImageRefused: the image is too long for its width, or the reverse.
        """
        width, height = size
        if max(size) > ASPECT_MAX * min(size):
            raise ImageRefused(
                f"the image has {width} x {height} pixels; expected at most {ASPECT_MAX} times as many one way "
                "as the other"
            )
        if self.kind == "crop":
            short, long = sorted(size)
            found = self.shortest, int(self.shortest * long / short)
            width, height = found if width <= height else found[::-1]
        elif self.kind == "fixed":
            width, height = self.size
        elif self.kind == "area":
            width, height = self.fit_area(width, height)
        else:
            width, height = self._by_longest(width, height)
        if width * height > RESIZED_MAX:
            raise ImageRefused(
                f"the image would be resized to {width} x {height} pixels; {RESIZED_MAX} is the most"
            )
        return width, height

    def fit_area(self, width: int, height: int) -> Size:
        """Return the size of the kind `area`: the aspect is kept within bounds of the area."""
        factor = self.multiple
        found = round(width / factor) * factor, round(height / factor) * factor
        if found[0] * found[1] > self.most:
            shrink = math.sqrt(height * width / self.most)
            found = (
                max(factor, math.floor(width / shrink / factor) * factor),
                max(factor, math.floor(height / shrink / factor) * factor),
            )
        elif found[0] * found[1] < self.least:
            grow = math.sqrt(self.least / (height * width))
            found = math.ceil(width * grow / factor) * factor, math.ceil(height * grow / factor) * factor
        return found

    def _by_longest(self, width: int, height: int) -> Size:
        ratio = max(height, width) / self.most
        if ratio > 1:
            width, height = max(1, math.floor(width / ratio)), max(1, math.floor(height / ratio))
        return -(-width // self.multiple) * self.multiple, -(-height // self.multiple) * self.multiple


def decode(data: bytes, processing: Processing) -> Pixels:
    """Return an encoded image as the model sees it, uint8 [height, width, 3].

    Rotates as its EXIF data says, and lays what is transparent over white. Memory is bounded by `PIXELS_MAX`.

    Raises:
        ImageRefused: no image, a damaged, animated or too large one.
    """
    image = open_rgb(data)
    size = processing.resized(image.size)
    if size != image.size:
        image = image.resize(size, resample=processing.resample)
    pixels = np.asarray(image)
    if processing.kind == "crop":
        width, height = processing.size
        left, top = (size[0] - width) // 2, (size[1] - height) // 2
        pixels = pixels[top : top + height, left : left + width]
    return np.ascontiguousarray(pixels)


def open_rgb(data: bytes) -> Image:
    """Return an encoded image upright, in red, green and blue.

    Raises:
        ImageRefused: see `decode`.
    """
    image = _opened(data)
    try:
        image.load()
        return _as_rgb(_upright(image))
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, OverflowError, MemoryError) as error:
        raise ImageRefused(
            f"the image is damaged or cut short ({error!s:.200}); expected a whole one"
        ) from None


def _opened(data: bytes) -> Image:
    """Return an image of which only the header was read."""
    from PIL import Image as images

    images.MAX_IMAGE_PIXELS = None  # checked here, before anything is decoded
    if len(data) > BYTES_MAX:
        raise ImageRefused(f"the image has {len(data)} bytes; at most {BYTES_MAX} are taken")
    try:
        image = images.open(io.BytesIO(data), formats=FORMATS)
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, OverflowError) as error:
        head = data[:512].lstrip().lower()
        if head.startswith((b"<svg", b"<?xml")):
            raise ImageRefused(f"the image is a drawing (SVG); {EXPECTED}") from None
        del error
        raise ImageRefused(f"the data is no image that is known here; {EXPECTED}") from None
    width, height = image.size
    if width * height > PIXELS_MAX:
        raise ImageRefused(f"the image has {width} x {height} pixels; at most {PIXELS_MAX} are taken")
    if _is_animated(image):
        raise ImageRefused("the image is animated; expected a single frame")
    return image


def _is_animated(image: Image) -> bool:
    """Tell whether an image has frames one after another.

    Cameras put a preview or the view of a second lens behind a photograph (MPO), and the first is the photograph.
    """
    return image.format != "MPO" and bool(getattr(image, "is_animated", False))


def _upright(image: Image) -> Image:
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, ZeroDivisionError):
        return image  # EXIF data that cannot be read says nothing


def _as_rgb(image: Image) -> Image:
    """Return an image in red, green and blue, 8 bits each."""
    from PIL import Image as images

    if image.mode.startswith("I") or image.mode == "F":  # 16 bits or more, which Pillow would cut off at 255
        levels = np.asarray(image, dtype=np.float64)
        most = 65535.0 if image.mode != "F" else max(1.0, float(levels.max(initial=1.0)))
        image = images.fromarray((levels * (255.0 / most)).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = images.new("RGBA", image.size, (255, 255, 255))
        image = images.alpha_composite(white, image)
    return image.convert("RGB")


def normalised(pixels: Pixels, processing: Processing) -> npt.NDArray[np.float32]:
    """Return float32 [3, height, width] of pixels [height, width, 3], as a vision tower takes them."""
    scaled = pixels.astype(np.float64) * processing.scale
    found = (scaled.astype(np.float32) - np.array(processing.mean, np.float32)) / np.array(
        processing.std, np.float32
    )
    return np.ascontiguousarray(found.transpose(2, 0, 1))
