"""Decoding of images in a process of its own, where an image that ends the process costs nobody else anything."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.models.vision.processing import ImageRefused, Processing, decode

__all__ = ["OPENER", "argument_of", "open_decoder", "pixels_of"]

OPENER = f"{__name__}:open_decoder"
_PIXELS, _REFUSED = b"p", b"r"
_EDGE_BYTES = 4


def argument_of(processing: Processing) -> str:
    """Return the argument of `open_decoder`."""
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
