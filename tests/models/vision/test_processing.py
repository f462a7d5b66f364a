"""Decoding of images: transformers' processors on Pillow are the oracle for sound ones; others are refused in words."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from pageant.models.vision.isolated import argument_of, open_decoder, pixels_of
from pageant.models.vision.processing import (
    BYTES_MAX,
    PIXELS_MAX,
    ImageRefused,
    Processing,
    decode,
    normalised,
)

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
COMMON = {"resample": 3, "scale": 1 / 255, "mean": MEAN, "std": STD}
CROP = Processing(kind="crop", shortest=56, size=(56, 56), **COMMON)
SIZES = [(61, 97), (130, 45), (33, 34), (1, 1), (56, 56), (400, 3)]


def written(image, form="PNG", **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def noise(size, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("size", SIZES)
def test_crops_are_transformers(size):
    right = CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})
    found = normalised(decode(written(noise(size)), CROP), CROP)
    expected = right(images=[noise(size)], return_tensors="np")["pixel_values"][0]
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("size", [*SIZES[:5], (900, 90)])
def test_sizes_within_an_area_are_transformers(size):
    processing = Processing(kind="area", multiple=28, least=56 * 56, most=28 * 28 * 12, **COMMON)
    right = Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 12})
    (grid,) = right(images=[noise(size)], return_tensors="np")["image_grid_thw"]
    width, height = processing.resized(size)
    assert [height // 14, width // 14] == grid[1:].tolist()


@pytest.mark.parametrize("size", SIZES[:5])
def test_sizes_by_the_longest_edge_are_transformers(size):
    processing = Processing(kind="longest", multiple=16, most=96, **COMMON)
    right = PixtralImageProcessorPil(size={"longest_edge": 96}, patch_size={"height": 16, "width": 16})
    (expected,) = right(images=[noise(size)], return_tensors="np")["image_sizes"]
    assert processing.resized(size) == (expected[1], expected[0])


def header(width, height):
    """Return a PNG that says it has so many pixels, and has none."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    described = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", described) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


SOUND = noise((64, 48))
FRAMES = {"save_all": True, "append_images": [noise((64, 48), 1)]}
REFUSED = {
    "a text": (b"no image at all", "no image that is known here; expected a PNG, JPEG"),
    "nothing": (b"", "no image that is known here"),
    "a truncated PNG": (written(SOUND)[:2000], "damaged or cut short"),
    "a truncated JPEG": (written(SOUND, "JPEG")[:900], "damaged or cut short"),
    "a header of a huge image": (header(60_000, 60_000), f"60000 x 60000 pixels; at most {PIXELS_MAX}"),
    "too many bytes": (bytes(BYTES_MAX + 1), f"{BYTES_MAX + 1} bytes; at most {BYTES_MAX} are taken"),
    **{
        f"an animated {form}": (written(SOUND, form, **FRAMES), "animated; expected a single frame")
        for form in ("GIF", "PNG", "WEBP")
    },
    "a drawing": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", r"a drawing \(SVG\); expected a PNG"),
    "a TIFF": (written(SOUND, "TIFF"), "no image that is known here"),
    "a line": (written(noise((2000, 2))), "2000 x 2 pixels; expected at most 200 times as many"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_images_are_refused_in_words(name):
    data, message = REFUSED[name]
    with pytest.raises(ImageRefused, match=message):
        decode(data, CROP)
    with pytest.raises(ImageRefused, match=message):
        pixels_of(open_decoder(argument_of(CROP))(data))


def level(image):
    """Return the mean of an image's channels."""
    return np.asarray(image).reshape(-1, 3).mean(0).round().tolist()


GREY = np.full((48, 48), 128, np.uint8)
KINDS = {
    "CMYK": (written(Image.new("CMYK", (48, 48), (0, 255, 255, 0)), "JPEG", quality=95), [254, 0, 0]),
    "16 bits": (written(Image.fromarray(np.full((48, 48), 128 * 257, np.uint16))), [128] * 3),
    "grey": (written(Image.fromarray(GREY)), [128] * 3),
    "one bit": (written(Image.new("1", (48, 48), 1)), [255] * 3),
    "transparent": (written(Image.new("RGBA", (48, 48), (9, 9, 9, 0))), [255] * 3),
    "a palette with alpha": (
        written(Image.new("P", (48, 48), 0), transparency=0),
        [255] * 3,
    ),
    "WebP": (written(Image.new("RGB", (48, 48), (10, 20, 30)), "WEBP", lossless=True), [10, 20, 30]),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_images_become_red_green_and_blue(name):
    data, expected = KINDS[name]
    processing = Processing(kind="crop", shortest=48, size=(48, 48), **COMMON)
    found = level(decode(data, processing))
    assert max(abs(one - right) for one, right in zip(found, expected, strict=True)) <= 2


TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""How a camera that is held so saves what it sees, by the EXIF standard's numbers."""


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
@pytest.mark.parametrize("orientation", TURNED)
def test_an_image_is_turned_as_its_exif_data_says(orientation, form):
    corners = np.zeros((48, 64, 3), np.uint8)
    corners[:24], corners[:, :32, 0] = 255, 128  # each quarter has a colour of its own
    upright = Image.fromarray(corners)
    exif = Image.Exif()
    exif[0x0112] = orientation
    saved = written(upright.transpose(TURNED[orientation]), form, exif=exif)
    processing = Processing(kind="crop", shortest=48, size=(48, 48), **COMMON)
    found, expected = decode(saved, processing), decode(written(upright), processing)
    places = np.ix_([4, 40], [4, 40])
    assert np.abs(found[places].astype(int) - expected[places]).max() <= 4


def test_exif_data_that_says_nonsense_changes_nothing():
    exif = Image.Exif()
    exif[0x0112] = 77
    for one in (exif, b"Exif\0\0and no more"):
        saved = written(SOUND, "JPEG", exif=one, quality=95)
        assert (decode(saved, CROP) == decode(written(SOUND, "JPEG", quality=95), CROP)).all()


def test_a_photograph_with_a_second_picture_is_the_first():
    """Cameras of telephones put a preview, or the view of another lens, into the same file."""
    both = written(SOUND, "MPO", quality=95, **FRAMES)
    assert (decode(both, CROP) == decode(written(SOUND, "JPEG", quality=95), CROP)).all()
