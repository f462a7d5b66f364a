"""An encoder that looks embeddings up in a file, so that its process starts in a moment: it imports no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from pageant.actors.encoder import Encoder
from pageant.actors.encoder.core import ImageEncoder, Pixels, digest_of
from pageant.models.checkpoint import Checkpoint
from pageant.models.vision.families import VisionSpec, read_vision
from pageant.models.vision.processing import decode
from pageant.models.vision.video_decoding import decode_video

KEPT = "kept_rows.json"


def keep(folder: Path, files: list[bytes], videos: Sequence[bytes] = ()) -> None:
    """Write the embeddings of encoded images and videos beside their checkpoint."""
    encoder = ImageEncoder(folder, "float32", "cpu", None)
    rows = {}
    for data in files:
        pixels = decode(data, encoder.spec.processing)
        digest = digest_of(pixels)
        rows[digest.hex()] = encoder.encode(pixels, digest).rows.tolist()
    for data in videos:
        frames = decode_video(data, encoder.video.processing)
        rows[digest_of(frames.pixels).hex()] = encoder.encode_video(frames, b"").rows.tolist()
    (folder / KEPT).write_text(json.dumps(rows))


class _KeptTower:
    """A tower that knows some images."""

    def __init__(self, folder: Path) -> None:
        rows = json.loads((folder / KEPT).read_text())
        self._rows = {digest: np.array(one, np.float32) for digest, one in rows.items()}

    def encode(self, pixels: Pixels) -> np.ndarray:
        """Return the embeddings of an image of pixels [height, width, 3]: float32 [tokens, width]."""
        return self._rows[digest_of(pixels).hex()]

    def encode_video(self, pixels: Pixels) -> np.ndarray:
        """Return the embeddings of a video of frames [frames, height, width, 3]."""
        return self._rows[digest_of(pixels).hex()]


class _KeptImages(ImageEncoder):
    def __init__(self, folder: Path) -> None:
        self.spec = cast(VisionSpec, read_vision(Checkpoint(folder)))
        self._tower = _KeptTower(folder)  # type: ignore[assignment]


class KeptEncoder(Encoder):
    """The encoder, with a tower that knows some images."""

    def load(self) -> ImageEncoder:
        """See `Encoder.load`."""
        return _KeptImages(Path(self.options.model))
