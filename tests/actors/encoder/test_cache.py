"""The cache of encoded images: by content, least recently used first out, within its budget."""

import numpy as np

from pageant.actors.encoder.cache import ImageCache
from pageant.protocol.arrays import int32
from pageant.protocol.encoding import EncodedImage

ROWS = np.zeros((4, 8), np.float32)
IMAGE = EncodedImage(
    token_ids=int32([7] * 4),
    places=int32(range(4)),
    rows=ROWS,
    names=np.zeros(64, np.uint8),
    grid=int32([1, 2, 2]),
)
BYTES = ROWS.nbytes + 64 + 16 + 16


def test_the_least_recently_used_image_gives_way():
    cache = ImageCache(2 * BYTES)
    for name in (b"a", b"b"):
        cache.add(name, IMAGE)
    assert cache.of_pixels(b"a") is IMAGE
    cache.add(b"c", IMAGE)
    assert [name for name in (b"a", b"b", b"c") if cache.of_pixels(name) is not None] == [b"a", b"c"]
    assert (len(cache), cache.num_bytes, cache.evicted) == (2, 2 * BYTES, 1)


def test_an_image_beyond_the_budget_is_not_kept_and_costs_no_other():
    cache = ImageCache(BYTES)
    cache.add(b"a", IMAGE)
    large = np.zeros((40, 8), np.float32)
    cache.add(
        b"b",
        EncodedImage(
            token_ids=IMAGE.token_ids, places=IMAGE.places, rows=large, names=IMAGE.names, grid=IMAGE.grid
        ),
    )
    assert cache.of_pixels(b"b") is None and cache.of_pixels(b"a") is IMAGE
    cache.add(b"a", IMAGE)
    assert cache.num_bytes == BYTES, "an image that is there is not counted twice"


def test_files_lead_to_pixels_and_are_forgotten_in_order():
    cache = ImageCache(BYTES)
    cache.link(b"file", b"a")
    assert cache.of_file(b"file") is None, "the pixels are known, and the image is not here"
    cache.add(b"a", IMAGE)
    assert cache.of_file(b"file") is IMAGE and cache.of_file(b"another") is None
    for number in range(63):
        cache.link(b"%d" % number, b"a")
    assert cache.of_file(b"file") is IMAGE
    cache.link(b"64", b"a")
    assert cache.of_file(b"0") is None and cache.of_file(b"file") is IMAGE
