"""Encoding of one image or video: pixels, tower, and the tokens that stand for it. Blocks; its caller offloads it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.models.vision.families import VisionSpec, read_vision
from pageant.models.vision.processing import ImageRefused
from pageant.models.vision.video import VideoFrames, VideoRefused
from pageant.models.vision.video_families import VideoSpec
from pageant.protocol.arrays import int32
from pageant.protocol.embedding import NAME_BYTES
from pageant.protocol.encoding import EncodedImage

if TYPE_CHECKING:
    import torch

__all__ = ["ImageEncoder", "digest_of", "digest_of_video", "required", "torch_ready"]

Pixels = npt.NDArray[np.uint8]
Spec = TypeVar("Spec")


def digest_of(pixels: Pixels) -> bytes:
    """Return the digest of pixels [height, width, 3], their size included."""
    shape = np.array(pixels.shape, "<i8").tobytes()
    return blake2b(pixels.tobytes(), digest_size=NAME_BYTES, key=shape, person=b"pageant-image").digest()


def digest_of_video(frames: VideoFrames) -> bytes:
    """Return the digest of a video, by its frames and by when they are shown, which prompts depend on too."""
    shape = np.array(frames.pixels.shape, "<i8").tobytes()
    found = blake2b(digest_size=NAME_BYTES, key=shape, person=b"pageant-video")
    found.update(frames.seconds.astype("<f8").tobytes())
    found.update(np.array(frames.rate, "<f8").tobytes())
    found.update(frames.pixels.data)
    return found.digest()


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
    """A model's vision tower, and the tokens of its images and videos.

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

    def encode(self, pixels: Pixels, digest: bytes, tokens_max: int | None = None) -> EncodedImage:
        """Return an image as a prompt has it: pixels [height, width, 3], and their digest.

        Raises:
            ImageRefused: it would have more than `tokens_max` tokens.
        """
        tokens = self.spec.tokens((pixels.shape[1], pixels.shape[0]))
        if tokens_max is not None and len(tokens.token_ids) > tokens_max:
            raise ImageRefused(_too_many("image", len(tokens.token_ids), tokens_max))
        rows = self._tower.encode(pixels)
        return self._encoded(rows, digest, tokens.token_ids, tokens.places, tokens.grid)

    def encode_video(self, frames: VideoFrames, digest: bytes, tokens_max: int | None = None) -> EncodedImage:
        """Return a video as a prompt has it: its frames, and their digest.

        Raises:
            VideoRefused: it would have more than `tokens_max` tokens.
        """
        spec = self.video
        grid = spec.grid(frames)
        count = grid[0] * grid[1] * grid[2]
        if tokens_max is not None and count > tokens_max:
            raise VideoRefused(_too_many("video", count, tokens_max))
        rows = self._tower.encode_video(frames.pixels)
        found = self._encoded(rows, digest, (spec.placeholder,) * count, range(count), grid)
        return msgspec.structs.replace(found, interval=spec.interval(frames), marks=spec.marks(frames))

    @property
    def video(self) -> VideoSpec:
        """Return how the model sees videos.

        Raises:
            VideoRefused: it sees none.
        """
        if self.spec.video is None:
            raise VideoRefused("the model takes no videos; expected an image")
        return self.spec.video

    def _encoded(
        self,
        rows: npt.NDArray[np.float32],
        digest: bytes,
        token_ids: Sequence[int],
        places: Sequence[int],
        grid: Sequence[int],
    ) -> EncodedImage:
        assert len(rows) == len(places), f"{len(rows)} rows for {len(places)} tokens"
        return EncodedImage(
            token_ids=int32(token_ids),
            places=int32(places),
            rows=np.ascontiguousarray(rows, dtype=np.float32),
            names=_names(digest, len(rows)),
            grid=int32(grid),
        )


def _too_many(what: str, count: int, most: int) -> str:
    return f"the {what} has {count} tokens; at most {most} leave room for an answer (max_model_len)"


def _names(digest: bytes, count: int) -> npt.NDArray[np.uint8]:
    """Return the names of an image's rows, [count * NAME_BYTES]: each goes by all pixels, and by its own place."""
    found = (
        blake2b(
            index.to_bytes(8, "little"), digest_size=NAME_BYTES, key=digest, person=b"pageant-imgrow"
        ).digest()
        for index in range(count)
    )
    return np.frombuffer(b"".join(found), np.uint8).copy()
