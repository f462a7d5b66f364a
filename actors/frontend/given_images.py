"""Images as users bring them: data: URLs, encoded files, Pillow's images and arrays. Nothing is fetched here."""

from __future__ import annotations

import base64
import binascii
import io
from typing import Any

import numpy as np

from pageant.models.vision.processing import BYTES_MAX
from pageant.protocol.encoding import ImagePart
from pageant.protocol.errors import BadRequest

__all__ = ["check_bytes", "read_base64", "read_data_url", "read_encoded", "read_image", "read_url"]

_EXPECTED = "expected a data: URL such as data:image/png;base64,..."


def read_url(url: Any, place: str, parameter: str = "messages") -> ImagePart:
    """Return the image of a data: URL. Others are refused: nothing is fetched, and no file is read.

    Raises:
        BadRequest: another kind of URL, no base64, or too many bytes; names the place.
    """
    _, text = read_data_url(url, place, _EXPECTED, parameter)
    return read_encoded(text, place, parameter)


def read_data_url(url: Any, place: str, expected: str, parameter: str) -> tuple[str, str]:
    """Return the kind of a data: URL's content, such as "image/png", and its base64.

    Raises:
        BadRequest: another kind of URL, or no base64; names the place.
    """
    if not isinstance(url, str):
        raise BadRequest(f"{place} is a {type(url).__name__}; {expected}", parameter)
    kind, _, rest = url.partition(":")
    if kind.lower() != "data":
        raise BadRequest(f"{place} is {url!r:.100}; {expected}", parameter)
    head, comma, data = rest.partition(",")
    if not comma or not head.lower().rstrip().endswith(";base64"):
        raise BadRequest(f"{place} is a data: URL without base64; {expected}", parameter)
    return head.partition(";")[0].strip().lower(), data


def read_encoded(text: Any, place: str, parameter: str = "messages") -> ImagePart:
    """Return the image of an encoded file in base64.

    Raises:
        BadRequest: no base64, nothing, or too many bytes; names the place.
    """
    return ImagePart(data=np.frombuffer(read_base64(text, place, parameter), np.uint8))


def read_base64(
    text: Any,
    place: str,
    parameter: str = "messages",
    bytes_max: int = BYTES_MAX,
    what: str = "an image",
) -> bytes:
    """Return what is in base64, at least one byte.

    Raises:
        BadRequest: no base64, nothing, or too many bytes; names the place.
    """
    if not isinstance(text, str):
        raise BadRequest(f"{place} is a {type(text).__name__}; expected {what} in base64", parameter)
    if len(text) > bytes_max * 3 // 2:
        raise _too_large(f"about {len(text) * 3 // 4}", place, parameter, bytes_max)
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"{place} is no base64 ({error}); expected {what} in it", parameter) from None
    check_bytes(data, place, parameter, bytes_max, what)
    return data


def read_image(value: Any, place: str, parameter: str = "prompt") -> ImagePart:
    """Return an image as users of the library bring it.

    Args:
        value: an encoded image, a data: URL, one of Pillow's, or an array uint8 [height, width, 3].

    Raises:
        BadRequest: none of them; names the place.
    """
    if isinstance(value, ImagePart):
        return value
    if isinstance(value, str):
        return read_url(value, place, parameter)
    if isinstance(value, bytes | bytearray | memoryview):
        return _part(bytes(value), place, parameter)
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] not in (3, 4) or not value.size:
            found = f"{value.dtype} of shape {list(value.shape)}"
            raise BadRequest(f"{place} is {found}; expected uint8 [height, width, 3]", parameter)
        from PIL import Image

        value = Image.fromarray(value)
    if not (hasattr(value, "save") and hasattr(value, "mode") and hasattr(value, "convert")):
        kinds = "an image of Pillow's, an array, bytes, or a data: URL"
        raise BadRequest(f"{place} is a {type(value).__name__}; expected {kinds}", parameter)
    return _part(_as_png(value, place, parameter), place, parameter)


_PNG_MODES = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")


def _as_png(image: Any, place: str, parameter: str) -> bytes:
    """Return an image of Pillow's as a PNG, upright."""
    from PIL import ImageOps

    file = io.BytesIO()
    try:
        image = ImageOps.exif_transpose(image)
        if image.mode not in _PNG_MODES:
            image = image.convert("RGB")
        image.save(file, "PNG", compress_level=1)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise BadRequest(
            f"{place} cannot be read ({error!s:.200}); expected a whole image", parameter
        ) from None
    return file.getvalue()


def _part(data: bytes, place: str, parameter: str) -> ImagePart:
    check_bytes(data, place, parameter, BYTES_MAX, "an image")
    return ImagePart(data=np.frombuffer(data, np.uint8))


def check_bytes(
    data: bytes | bytearray | memoryview, place: str, parameter: str, bytes_max: int, what: str
) -> None:
    """Refuse a file without bytes, or with more than `bytes_max`. `what` was expected, such as "an image".

    Raises:
        BadRequest: names the place.
    """
    if not data:
        raise BadRequest(f"{place} has no bytes; expected {what}", parameter)
    if len(data) > bytes_max:
        raise _too_large(str(len(data)), place, parameter, bytes_max)


def _too_large(size: str, place: str, parameter: str, bytes_max: int) -> BadRequest:
    return BadRequest(f"{place} has {size} bytes; at most {bytes_max} are taken", parameter)
