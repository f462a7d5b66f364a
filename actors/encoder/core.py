"""Encoding of one image: pixels, tower, and the tokens that stand for it. Blocks; its caller offloads it."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.models.vision.families import VisionSpec, read_vision
from pageant.protocol.arrays import int32
from pageant.protocol.embedding import NAME_BYTES
from pageant.protocol.encoding import EncodedImage

if TYPE_CHECKING:
    import torch

__all__ = ["ImageEncoder", "digest_of", "required", "torch_ready"]

Pixels = npt.NDArray[np.uint8]
Spec = TypeVar("Spec")


def digest_of(pixels: Pixels) -> bytes:
    """Return the digest of pixels [height, width, 3], their size included."""
    shape = np.array(pixels.shape, "<i8").tobytes()
    return blake2b(pixels.tobytes(), digest_size=NAME_BYTES, key=shape, person=b"pageant-image").digest()


def torch_ready(checkpoint: Checkpoint, dtype: str, device: str, threads: int | None) -> torch.dtype:
    """Set the threads of a tower on a CPU, and return the dtype that it computes in.

    Args:
        dtype: by its name; "auto" is the checkpoint's.
        threads: None leaves them as they are.
    """
    import torch

    if threads is not None and device == "cpu":
        torch.set_num_threads(threads)
    found: torch.dtype = getattr(torch, checkpoint.dtype if dtype == "auto" else dtype)
    return found


def required(spec: Spec | None, folder: Path, what: str) -> Spec:
    """Return the description of a tower.

    Args:
        folder: the checkpoint's.
        what: the tower takes, such as "images".

    Raises:
        CheckpointError: there is none, since the model has no such tower.
    """
    if spec is None:
        raise CheckpointError(
            folder, f"a model that takes no {what}", "one that does", "Leave the encoder out."
        )
    return spec


class ImageEncoder:
    """A model's vision tower, and the tokens of its images.

    Args:
        folder: the checkpoint's.
        dtype: that the tower computes in; "auto" is the checkpoint's.
        threads: of the tower on a CPU; None leaves them as they are.

    Raises:
        CheckpointError: the model does not see, or its tower cannot be loaded.
    """

    def __init__(self, folder: Path, dtype: str, device: str, threads: int | None) -> None:
        checkpoint = Checkpoint(folder)
        self.spec: VisionSpec = required(read_vision(checkpoint), folder, "images")
        from pageant.models.vision.towers import VisionTower

        self._tower = VisionTower(
            checkpoint, self.spec, torch_ready(checkpoint, dtype, device, threads), device
        )

    def encode(self, pixels: Pixels, digest: bytes) -> EncodedImage:
        """Return an image as a prompt has it: pixels [height, width, 3], and their digest."""
        rows = self._tower.encode(pixels)
        tokens = self.spec.tokens((pixels.shape[1], pixels.shape[0]))
        assert len(rows) == len(tokens.places), f"{len(rows)} rows for {len(tokens.places)} tokens"
        return EncodedImage(
            token_ids=int32(tokens.token_ids),
            places=int32(tokens.places),
            rows=np.ascontiguousarray(rows, dtype=np.float32),
            names=_names(digest, len(rows)),
            grid=int32(tokens.grid),
        )


def _names(digest: bytes, count: int) -> npt.NDArray[np.uint8]:
    """Return the names of an image's rows, [count * NAME_BYTES]: each goes by all pixels, and by its own place."""
    found = (
        blake2b(
            index.to_bytes(8, "little"), digest_size=NAME_BYTES, key=digest, person=b"pageant-imgrow"
        ).digest()
        for index in range(count)
    )
    return np.frombuffer(b"".join(found), np.uint8).copy()
