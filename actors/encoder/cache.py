"""Caches of what was encoded by its content: least recently used first out, within a budget of bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from pageant.protocol.encoding import EncodedImage

__all__ = ["ByteBudget", "ImageCache"]

_ALIASES_PER_IMAGE = 4


K = TypeVar("K")
V = TypeVar("V")


class ByteBudget(Generic[K, V]):
    """Values by keys, of which those that were not asked for longest give way.

    Args:
        budget: bytes that may be held; a value that is larger by itself is not kept.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.num_bytes = self.evicted = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return a value; None where it is not here."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def add(self, key: K, value: V, size: int) -> None:
        """Keep a value of so many bytes, in place of others if need be."""
        if size > self.budget or key in self._values:
            return
        self._values[key] = value, size
        self.num_bytes += size
        while self.num_bytes > self.budget:
            _, (_, gone) = self._values.popitem(last=False)
            self.num_bytes -= gone
            self.evicted += 1


class ImageCache:
    """Encoded images by the digests of their pixels, which digests of encoded files lead to.

    Args:
        budget: bytes that may be held; an image that is larger by itself is not kept.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.num_bytes = self.evicted = 0
        self._images: OrderedDict[bytes, EncodedImage] = OrderedDict()
        # Files of the same pixels, by their digests; those that are not asked for go first.
        self._pixels_of: OrderedDict[bytes, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._images)

    def of_file(self, file: bytes) -> EncodedImage | None:
        """Return the image of a file, by the file's digest; None where it is not known."""
        pixels = self._pixels_of.get(file)
        if pixels is None:
            return None
        self._pixels_of.move_to_end(file)
        return self.of_pixels(pixels)

    def of_pixels(self, pixels: bytes) -> EncodedImage | None:
        """Return the image of a digest of pixels; None where it is not here."""
        image = self._images.get(pixels)
        if image is not None:
            self._images.move_to_end(pixels)
        return image

    def link(self, file: bytes, pixels: bytes) -> None:
        """Remember the pixels of a file, both by their digests."""
        self._pixels_of[file] = pixels
        self._pixels_of.move_to_end(file)
        while len(self._pixels_of) > max(64, _ALIASES_PER_IMAGE * len(self._images)):
            self._pixels_of.popitem(last=False)

    def add(self, pixels: bytes, image: EncodedImage) -> None:
        """Keep an image, in place of others if need be."""
        size = _size(image)
        if size > self.budget or pixels in self._images:
            return
        self._images[pixels] = image
        self.num_bytes += size
        while self.num_bytes > self.budget:
            _, gone = self._images.popitem(last=False)
            self.num_bytes -= _size(gone)
            self.evicted += 1


def _size(image: EncodedImage) -> int:
    return image.rows.nbytes + image.names.nbytes + image.token_ids.nbytes + image.places.nbytes
